"""One export of the toy pair for the whole session, and cheap copies of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from e2e_tools import TOYS, Done, ToyHome, copy_home, paste, samevec
from export_lab import Lab

from samevec.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ToyHome:
    """Export the pair by pasting the commands an empty home asks for; its path needs quoting."""
    pytest.importorskip("optimum.exporters.onnx", reason="needs the export extra")
    folder = tmp_path_factory.mktemp("exported")
    home = folder / "a home"
    before = json.loads(samevec("status", "--lock", "toy", "--home", home, "--json", folder=folder).out)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    exports = [paste(report["fix"], "--json", folder=elsewhere) for report in before]
    for done in exports:
        assert done.code == 0, done.err
    assert [report["model"] for report in before] == list(TOYS)
    return ToyHome(home, before, exports)


@pytest.fixture
def home(exported: ToyHome, tmp_path: Path) -> Path:
    """A copy of the exported home that a test may break."""
    return copy_home(exported.path, tmp_path / "home")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("SAMEVEC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command line in this process: as fast as the command itself."""

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err, err
        return Done(code, out, err)

    return run


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A process with the exporter loaded, for experiments that a test process would not survive."""
    pytest.importorskip("optimum.exporters.onnx", reason="needs the export extra")
    made = Lab(tmp_path_factory.mktemp("lab"))
    yield made
    made.close()
