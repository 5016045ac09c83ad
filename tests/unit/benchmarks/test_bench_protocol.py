"""The protocol between the benchmark and its peers, and the files that say what peers are; no timing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks.peers.loop import BATCH_SIZES, Unavailable, _answer
from benchmarks.peers.onnxruntime_peer import _groups
from benchmarks.protocol import (
    REPOSITORY,
    Child,
    PeerFailedError,
    PeerUnavailableError,
    parse_answer,
    peer_environment,
    without_paths,
)
from benchmarks.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PEERS = REPOSITORY / "benchmarks" / "peers"
REQUIREMENTS = sorted(PEERS.glob("*.txt"))


class FakePeer:
    batch_size: int | None = 32
    padded_tokens = 0
    levels = ("raw", "final")

    def prepare(self, request: dict[str, Any]) -> None:
        pass

    def load(self, request: dict[str, Any]) -> None:
        if request["model"] != "known":
            raise Unavailable("no such model")

    def raw(self, items: Sequence[Any]) -> NDArray[np.float32]:
        self.padded_tokens += 7 * len(items)
        return np.full((len(items), 2), 2.0, dtype=np.float32)

    def final(self, items: Sequence[Any]) -> NDArray[np.float32]:
        assert all(isinstance(item, (str, tuple)) for item in items)
        self.padded_tokens += 1000
        return np.ones((len(items), 2), dtype=np.float32)


def test_load_tells_levels_and_time() -> None:
    answer = _answer(FakePeer(), {"op": "load", "model": "known"})
    assert answer["levels"] == ["raw", "final"]
    assert answer["load_s"] >= 0
    with pytest.raises(Unavailable):
        _answer(FakePeer(), {"op": "load", "model": "other"})


def test_examine_counts_padding_of_its_own_pass_alone(tmp_path: Path) -> None:
    output = tmp_path / "raw.npy"
    answer = _answer(FakePeer(), {"op": "examine", "items": ["a", ["q", "d"]], "output": str(output)})
    assert set(answer) == {"wall_s", "cpu_s", "padded_tokens"}
    assert answer["padded_tokens"] == 14
    assert np.load(output).tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_time_gives_one_number_a_repeat(tmp_path: Path) -> None:
    output = tmp_path / "final.npy"
    answer = _answer(FakePeer(), {"op": "time", "items": ["a"], "repeats": 3, "output": str(output)})
    assert (len(answer["wall_s"]), len(answer["cpu_s"])) == (3, 3)
    assert np.load(output).shape == (1, 2)


def test_tune_chooses_one_of_the_batch_sizes() -> None:
    answer = _answer(FakePeer(), {"op": "tune", "items": ["a", "b"]})
    assert answer["batch_size"] in BATCH_SIZES
    assert answer["note"].count("b") == len(BATCH_SIZES)


def test_answers_are_parsed() -> None:
    assert parse_answer('{"ok": true, "load_s": 1.5}\n') == {"load_s": 1.5}
    with pytest.raises(PeerUnavailableError, match=r"^no profile x$"):
        parse_answer('{"ok": false, "kind": "unavailable", "error": "no profile x"}')
    with pytest.raises(PeerFailedError, match=r"^ValueError: bad$"):
        parse_answer('{"ok": false, "kind": "failed", "error": "ValueError: bad"}')


@pytest.mark.parametrize("line", ["", "warning: something\n", "[]", "{}", '{"ok": false}'])
def test_what_is_no_answer_is_a_failure(line: str) -> None:
    with pytest.raises(PeerFailedError):
        parse_answer(line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("No such file: '/home/someone/models/x.onnx'", "No such file: 'x.onnx'"),
        ("a/b stays, 1/2 too", "a/b stays, 1/2 too"),
        ("two\n  lines   /root/.cache/pip", "two lines pip"),
        ("in /tmp/dir/: gone", "in : gone"),
    ],
)
def test_paths_never_reach_results(text: str, shown: str) -> None:
    assert without_paths(text) == shown


def test_peers_report_to_nobody_unless_the_user_says_so() -> None:
    assert peer_environment({"A": "b"}) == {
        "A": "b",
        "PYTHONPATH": str(REPOSITORY),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    assert peer_environment({"ORT_DISABLE_TELEMETRY": "0"})["ORT_DISABLE_TELEMETRY"] == "0"


def test_a_real_child_says_what_it_does_not_offer(tmp_path: Path) -> None:
    with Child(Path(sys.executable), "samevec_peer", tmp_path / "log") as child:
        with pytest.raises(PeerUnavailableError, match=r"^this samevec has no profile nonesuch$"):
            child.ask("load", task="embed", model="m", options={"profile": "nonesuch"})
        with pytest.raises(PeerFailedError, match="no op 'dance'"):
            child.ask("dance", items=[])


def test_a_child_that_ends_is_a_failure(tmp_path: Path) -> None:
    with (
        Child(Path(sys.executable), "no_such_script", tmp_path / "log") as child,
        pytest.raises(PeerFailedError, match="ended with 1 during load"),
    ):
        child.ask("load")


@pytest.mark.parametrize("grouping", ["arrival", "near-equal"])
def test_the_plain_loop_computes_every_row_once(grouping: str) -> None:
    lengths = [7, 300, 8, 2048, 9, 280, 7, 5000, *[12] * 70]
    groups = _groups(lengths, grouping)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert max(len(group) for group in groups) <= 32
    if grouping == "near-equal":
        assert all(min(lengths[i] for i in group) >= 0.8 * max(lengths[i] for i in group) for group in groups)


def test_every_system_names_files_that_are_there() -> None:
    names = {path.stem for path in REQUIREMENTS}
    for system in SYSTEMS.values():
        assert (PEERS / f"{system.script}.py").is_file()
        assert system.environment is None or system.environment in names
        if system.prepared_by is not None:
            environment, _, script = system.prepared_by.partition("/")
            assert environment in names
            assert (PEERS / f"{script}.py").is_file()
    json.dumps([dict(system.options) for system in SYSTEMS.values()])


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_requirements_are_exact_and_name_no_address(path: Path) -> None:
    lines = path.read_text().splitlines()
    for line in lines:
        name, _, version = line.partition("==")
        assert name
        assert version.replace(".", "").replace("post", "").isalnum(), line
    pinned = dict(line.split("==") for line in lines)
    assert pinned.get("torch", "2.13.0") == "2.13.0"
