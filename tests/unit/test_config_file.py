"""``serve --config``: which value wins, what is refused, and that messages name the file and the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from samevec.cli import serve as serving
from samevec.cli.config_file import read_config
from samevec.cli.main import cli, main
from samevec.errors import ConfigError

SERVE = cli.commands["serve"]
OPTIONS = [one for one in SERVE.params if isinstance(one, click.Option) and one.name != "config"]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[serving.ServePlan]:
    """What ``serve`` was asked to do, instead of doing it."""
    seen: list[serving.ServePlan] = []

    def take(plan: serving.ServePlan, **_: Any) -> int:
        seen.append(plan)
        return 0

    monkeypatch.setattr(serving, "serve_models", take)
    return seen


def write(folder: Path, text: str) -> Path:
    path = folder / "samevec.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flag_before_variable_before_file_before_default(tmp_path: Path, plans: list[serving.ServePlan]) -> None:
    path = write(tmp_path, 'lock = "toy"\nport = 1\nmax-queue = 2\ndrain-s = 3\ntruememory = true\n')
    environ = {"SAMEVEC_PORT": "10", "SAMEVEC_MAX_QUEUE": "20"}
    arguments = ["serve", "--config", str(path), "--port", "100"]
    result = CliRunner().invoke(cli, arguments, env=environ, standalone_mode=False)
    assert result.exception is None
    (plan,) = plans
    settings = plan.settings
    assert (settings.port, settings.max_queue_items, settings.drain_s, settings.host) == (100, 20, 3.0, "127.0.0.1")
    assert settings.truememory
    assert [entry.source[:4] for entry in plan.entries] == ["toy:", "toy:"]


def test_the_file_may_be_named_by_a_variable(tmp_path: Path, plans: list[serving.ServePlan]) -> None:
    path = write(tmp_path, 'lock = "toy"\nmodel = ["toy-qwen3-embedder"]\ncors-origin = ["https://a.example"]\n')
    result = CliRunner().invoke(cli, ["serve"], env={"SAMEVEC_CONFIG": str(path)}, standalone_mode=False)
    assert result.exception is None
    assert [entry.name for entry in plans[0].entries] == ["toy-qwen3-embedder"]
    assert plans[0].settings.cors_origins == ("https://a.example",)


def test_relative_paths_are_those_of_the_files_folder(tmp_path: Path, plans: list[serving.ServePlan]) -> None:
    path = write(tmp_path, 'lock = "toy"\napi-key-file = "keys"\nuds = "/run/s.sock"\nsocket = "~/t.sock"\n')
    result = CliRunner().invoke(cli, ["serve", "--config", str(path)], standalone_mode=False)
    assert result.exception is None
    settings = plans[0].settings
    assert (settings.api_key_file, settings.uds) == (tmp_path / "keys", Path("/run/s.sock"))
    assert settings.socket == Path.home() / "t.sock"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "prot: unknown key; is port meant?"),
        ("max_queue = 1", "max_queue: unknown key; is max-queue meant?"),
        ("[serve]\nport = 1", "serve: unknown key"),
        ('port = "1"', "port: a whole number is needed, '1' given"),
        ("port = true", "port: a whole number is needed, True given"),
        ("port = 1.5", "port: a whole number is needed, 1.5 given"),
        ('truememory = "yes"', "truememory: true or false is needed, 'yes' given"),
        ('model = "a"', 'model: a list is needed, such as ["..."]'),
        ("model = [1]", "model[0]: a string is needed, 1 given"),
        ("drain-s = false", "drain-s: a number is needed, False given"),
        ("config = 'x'", "config: unknown key"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config(path, OPTIONS)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_every_flag_of_serve_may_stand_in_the_file(tmp_path: Path) -> None:
    lines = []
    for one in OPTIONS:
        key = max(one.opts, key=len).lstrip("-")
        value = "true" if one.is_flag else "1" if isinstance(one.type, (click.IntRange, click.FloatRange)) else '"x"'
        value = "1" if key == "port" else value
        lines.append(f"{key} = {[value.strip(chr(34))] if one.multiple else value}")
    read = read_config(write(tmp_path, "\n".join(lines)), OPTIONS)
    assert set(read) == {one.name for one in OPTIONS}


def test_a_wrong_file_is_exit_code_two_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("port = ", "port = 99999999", "prot = 1"):
        code = main(["serve", "--lock", "toy", "--config", str(write(tmp_path, text))])
        told = capsys.readouterr().err
        assert code == 2, told
        assert "Traceback" not in told
    assert main(["serve", "--config", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml: cannot be read" in capsys.readouterr().err
