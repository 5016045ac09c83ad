"""What lies under deploy/: every file parses, and calls samevec with flags and variables that exist."""

from __future__ import annotations

import configparser
import json
import plistlib
import re
import shlex
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml
from pages import ROOT, commands, flags

from samevec.cli.config_file import read_config
from samevec.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ROOT / "deploy"
COMMANDS = {path[1]: command for path, command in commands() if len(path) == 2}
#: ONNX Runtime's switch. samevec sets it too; here it is for whatever else runs in the same place.
SILENT = "ORT_DISABLE_TELEMETRY"
#: glibc's allocator returns single pages: docs/operations.md.
ALLOCATOR = "PYTHONMALLOC"
VARIABLES = {flag.envvar for _, command in commands() for flag in flags(command)} | {"SAMEVEC_HOME", SILENT, ALLOCATOR}
#: Longest drain that the files allow for: what stops the process must wait longer.
DRAIN_S = 30.0


def require_command(words: list[str]) -> None:
    """The words after ``samevec`` are a command and its flags."""
    command = COMMANDS[words[0]]
    known = {name for flag in flags(command) for name in flag.opts}
    assert [word for word in words[1:] if word.startswith("-") and word not in known] == []


class _Unit(configparser.RawConfigParser):
    """Keys may stand several times in a unit: their values are collected."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    text = (DEPLOY / "samevec.service").read_text(encoding="utf-8")
    for i, part in enumerate(re.split(r"^(?=\[)", text, flags=re.MULTILINE)):
        parser = _Unit(strict=False, delimiters=("=",))
        keyless = re.sub(r"^(\w+)=", lambda match, n=i: f"{match[1]}.{match.start()}.{n}=", part, flags=re.MULTILINE)
        parser.read_string(keyless if part.startswith("[") else "")
        for section in parser.sections():
            for key, value in parser[section].items():
                found.setdefault(section, {}).setdefault(key.split(".")[0], []).append(value)
    return found


def test_the_unit_starts_a_command_that_exists() -> None:
    service = unit()["Service"]
    (start,) = service["ExecStart"]
    program, *words = shlex.split(start)
    assert program.endswith("/samevec")
    require_command(words)
    assert {one.partition("=")[0] for one in service["Environment"]} <= VARIABLES
    assert {f"{SILENT}=1", f"{ALLOCATOR}=malloc"} <= set(service["Environment"])
    assert float(service["TimeoutStopSec"][0]) > DRAIN_S
    assert service["RestartPreventExitStatus"] == ["1 2 3"]  # errors.EXIT_CODES: no restart mends them
    assert service["User"] != ["root"]
    assert unit()["Install"]["WantedBy"] == ["multi-user.target"]


def test_the_agent_starts_a_command_that_exists() -> None:
    agent = plistlib.loads((DEPLOY / "org.samevec.serve.plist").read_bytes())
    assert agent["Label"] == "org.samevec.serve"
    program, *words = agent["ProgramArguments"]
    assert program.endswith("/samevec")
    require_command(words)
    assert set(agent["EnvironmentVariables"]) <= VARIABLES
    assert agent["EnvironmentVariables"][SILENT] == "1"
    assert agent["ExitTimeOut"] > DRAIN_S
    assert agent["Umask"] == 0o077


def test_the_example_configuration_is_accepted_with_every_line_in_use(tmp_path: Path) -> None:
    path = DEPLOY / "samevec.toml"
    options = [one for one in COMMANDS["serve"].params if isinstance(one, click.Option) and one.name != "config"]
    assert read_config(path, options)["drain_s"] == DRAIN_S
    everything = re.sub(r"^# (?=[a-z-]+ = )", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert "idle-unload-s = 900.0" in everything.splitlines()
    whole = tmp_path / "whole.toml"
    whole.write_text(everything, encoding="utf-8")
    assert read_config(whole, options)["idle_unload_s"] == 900.0
    assert read_config(whole, options)["reprobe_s"] == 3600.0


def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions of each stage of the Dockerfile."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stage = rest.split(" AS ")[1]
            found[stage] = []
        found[stage].append((word, rest.strip()))
    return found


def values(stage: str, word: str) -> list[str]:
    return [rest for name, rest in stages()[stage] if name == word]


@pytest.mark.parametrize("stage", ["export", "serve"])
def test_the_images_run_a_command_that_exists_as_nobody_special(stage: str) -> None:
    assert values(stage, "USER") == ["samevec"]
    assert json.loads(values(stage, "ENTRYPOINT")[0]) == ["samevec"]
    require_command(json.loads(values(stage, "CMD")[0]))
    for name in ("constraints.txt", "models.lock", "pyproject.toml"):
        assert name in values(stage, "COPY")[0].split()
        assert (ROOT / name).is_file()
    environment = {one.partition("=")[0] for line in values(stage, "ENV") for one in line.split()}
    assert {name for name in environment if name.startswith("SAMEVEC_")} <= VARIABLES


def test_the_serving_image_has_no_torch_and_is_the_last_stage() -> None:
    assert list(stages()) == ["base", "export", "serve"]
    assert values("serve", "RUN") == ["pip install -c constraints.txt '.[cpu]'"]
    assert values("export", "RUN") == ["pip install -c constraints.txt '.[cpu,export]'"]
    assert all(stages()[stage][0][1].startswith("base AS") for stage in ("export", "serve"))
    assert f"{SILENT}=1" in values("base", "ENV")[0].split()
    assert f"{ALLOCATOR}=malloc" in values("serve", "ENV")[0].split()
    (check,) = values("serve", "HEALTHCHECK")
    assert "/ready" in check
    assert values("serve", "EXPOSE") == ["8765"]
    port = next(one for one in flags(COMMANDS["serve"]) if one.name == "port").default
    assert port == 8765


def test_the_compose_file_names_stages_commands_and_variables_that_exist() -> None:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        assert service["build"]["target"] in stages()
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        require_command(service["command"])
        assert set(service["environment"]) <= VARIABLES
        assert service["environment"][SILENT] == "1"
    assert services["serve"]["ports"] == ["127.0.0.1:8765:8765"]
    assert float(services["serve"]["stop_grace_period"].rstrip("s")) > DRAIN_S
    assert cli.commands["serve"] is COMMANDS["serve"]
