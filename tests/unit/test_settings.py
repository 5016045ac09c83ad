"""What comes from the environment."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from samevec.errors import ConfigError
from samevec.settings import (
    default_home,
    default_snapshots,
    default_token_budget,
    silence_onnxruntime,
)


def test_home_is_the_users_data_folder_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_home({}) == default_home({"SAMEVEC_HOME": ""}) == platformdirs.user_data_path("samevec", False)
    assert default_home({"SAMEVEC_HOME": "/srv/samevec"}) == Path("/srv/samevec")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_home({"SAMEVEC_HOME": "~/models"}) == Path("/home/someone/models")
    monkeypatch.setenv("SAMEVEC_HOME", "/elsewhere")
    assert default_home() == Path("/elsewhere")


def test_snapshots_are_none_unless_given() -> None:
    assert default_snapshots({}) is None
    assert default_snapshots({"SAMEVEC_SNAPSHOTS": "/data"}) == Path("/data")


def test_the_token_budget_is_a_whole_number() -> None:
    assert default_token_budget({}) is None
    assert default_token_budget({"SAMEVEC_TOKEN_BUDGET": ""}) is None
    assert default_token_budget({"SAMEVEC_TOKEN_BUDGET": "2048"}) == 2048
    for bad in ("0", "-1", "4k", "1.5", " "):
        with pytest.raises(ConfigError) as caught:
            default_token_budget({"SAMEVEC_TOKEN_BUDGET": bad})
        assert str(caught.value) == f"SAMEVEC_TOKEN_BUDGET is {bad!r}; a whole number of at least 1 is needed"


def test_onnxruntime_is_silent_unless_the_user_chose() -> None:
    for given, wanted in (({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0"), ({"ORT_DISABLE_TELEMETRY": ""}, "")):
        environ = dict(given)
        silence_onnxruntime(environ)
        assert environ == {"ORT_DISABLE_TELEMETRY": wanted}
