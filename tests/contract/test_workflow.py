"""The CI example under deploy/: what it calls exists, what it uses is pinned, and its report is kept."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pages
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "deploy" / "github-actions-parity.yml"
COMMANDS = dict(pages.commands())


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    loaded = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow["jobs"]["parity"]["steps"]
    return found


def samevec_calls(steps: list[dict[str, Any]]) -> list[list[str]]:
    """The words after ``samevec``, of every call in every step."""
    text = "\n".join(step.get("run", "") for step in steps)
    return [shlex.split(call) for call in re.findall(r"(?<![\w./-])samevec ([^\n;|)]*)", text)]


def test_every_call_of_samevec_exists_with_its_flags(steps: list[dict[str, Any]]) -> None:
    called = set()
    for words in samevec_calls(steps):
        path = next((p for p in COMMANDS if words[: len(p) - 1] == list(p[1:])), None)
        assert path is not None, words
        known = {name for flag in pages.flags(COMMANDS[path]) for name in flag.opts}
        assert {word for word in words if word.startswith("--")} <= known, words
        called.add(path[1:])
    assert called == {("lock", "check"), ("export",), ("parity",)}


def test_every_variable_is_one_that_a_flag_reads(workflow: dict[Any, Any]) -> None:
    known = {flag.envvar for command in COMMANDS.values() for flag in pages.flags(command)}
    ours = {name for name in workflow["env"] if name.startswith("SAMEVEC_")}
    assert ours - {"SAMEVEC_REPOSITORY", "SAMEVEC_COMMIT"} <= known
    # The two that only this file reads must not be taken for flags.
    assert not {"SAMEVEC_REPOSITORY", "SAMEVEC_COMMIT"} & known


def test_actions_are_pinned_by_commit(steps: list[dict[str, Any]]) -> None:
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+(/[a-z]+)?@[0-9a-f]{40}", action), action


def test_the_cache_is_keyed_by_the_locks_digest_and_saved_as_it_was_looked_for(steps: list[dict[str, Any]]) -> None:
    restore, save = ((step["with"]) for step in steps if "actions/cache/" in step.get("uses", ""))
    assert restore == save
    assert "steps.lock.outputs.digest" in restore["key"]
    lock = next(step for step in steps if step.get("id") == "lock")
    assert "samevec lock check --json" in lock["run"]
    assert lock["run"].rstrip().endswith('>> "$GITHUB_OUTPUT"')


def test_report_and_junit_are_kept_whatever_the_outcome(steps: list[dict[str, Any]]) -> None:
    (gate,) = [words for words in samevec_calls(steps) if words[0] == "parity"]
    folder = gate[gate.index("--report") + 1]
    assert gate[gate.index("--junit") + 1].startswith(f"{folder}/")
    (upload,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert upload["with"]["path"] == folder
    assert "!cancelled()" in upload["if"]


def test_the_workflow_writes_nothing_to_the_repository(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
