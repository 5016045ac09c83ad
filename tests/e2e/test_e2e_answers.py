"""One text, one vector: answers of the exported pair on other processors, and who refuses when they change."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from e2e_tools import TOYS, environment, samevec
from emulation import aarch64, haswell
from emulators import ROOT

from samevec.artifact import find_artifact
from samevec.digest import canonical_json, sha256_file
from samevec.lock import dump_lock, load_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from e2e_tools import Done, ToyHome
    from emulation import EmulatedProcessor

    from samevec.artifact import Artifact

pytestmark = pytest.mark.model
LOCK = load_lock("toy")
SCRIPT = str(ROOT / "tests" / "native" / "answer_cases.py")
SECOND_EXPORT = str(ROOT / "tests" / "native" / "second_export.py")
#: Short, past a block of keys, past a local window, and others at random.
CASES = {TOYS[0]: (0, 5, 13, 40, 100, 260), TOYS[1]: (0, 10, 11, 40)}


def artifact_of(home: Path, name: str = TOYS[0]) -> Artifact:
    return find_artifact(home, LOCK.model(name), "cpu")


def test_the_manifest_has_the_answers_that_the_lock_pins(exported: ToyHome) -> None:
    for name in TOYS:
        pinned, manifest = LOCK.model(name).answers, artifact_of(exported.path, name).manifest
        assert pinned is not None
        assert (manifest.arithmetic, manifest.answers) == (pinned.arithmetic, pinned.digest)


@pytest.mark.parametrize("processor", [haswell, aarch64], ids=["haswell", "aarch64"])
@pytest.mark.parametrize("name", TOYS)
def test_another_processor_gives_the_same_bits(exported: ToyHome, processor: EmulatedProcessor, name: str) -> None:
    if processor.problem is not None:
        pytest.skip(processor.problem)
    said = processor.run(SCRIPT, "toy", name, str(exported.path), *map(str, CASES[name]))
    assert said.split() == ["avx2" if processor is haswell else "neon"]


def test_every_graph_file_has_the_same_bytes_in_a_second_export(
    exported: ToyHome, tmp_path: Path, cli: Callable[..., Done]
) -> None:
    assert cli("export", "--lock", "toy", "--model", TOYS[0], "--home", tmp_path).code == 0
    first, second = artifact_of(exported.path).manifest, artifact_of(tmp_path).manifest
    same = ("model.onnx", "model.onnx.data", "trace.onnx", "answers.json", "tokenizer.json")
    assert {name: first.files[name] for name in same} == {name: second.files[name] for name in same}


def test_a_lock_with_anothers_answers_refuses_the_export(tmp_path: Path, cli: Callable[..., Done]) -> None:
    mine = LOCK.model(TOYS[0]).answers
    assert mine is not None
    lock = tmp_path / "toy.lock"
    text = dump_lock(LOCK)
    lock.write_text(text.replace(mine.digest, "sha256:" + "0" * 64))
    done = cli("export", "--lock", lock, "--model", TOYS[0], "--home", tmp_path / "home")
    assert done.code == 1
    assert re.search(rf"answers are {mine.digest}, the lock pins sha256:0{{64}}: .*samevec parity --selftest", done.err)
    assert list((tmp_path / "home" / "artifacts").glob("[!.]*")) == []


def rewrite(artifact: Artifact, record: object) -> None:
    """Put other answers in place, and make the manifest fit, as a forger would."""
    content = canonical_json(record)
    artifact.answers_path.write_bytes(content)
    manifest = artifact.path / "manifest.json"
    listed = json.loads(manifest.read_bytes())
    listed["files"]["answers.json"] = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_bytes(canonical_json(listed))


def test_the_gate_refuses_a_case_with_other_bits_and_names_it(home: Path, cli: Callable[..., Done]) -> None:
    artifact = artifact_of(home)
    record = json.loads(artifact.answers_path.read_bytes())
    record["cases"][5] = "0" * 64
    rewrite(artifact, record)
    done = cli("parity", "--lock", "toy", "--model", TOYS[0], "--home", home, "--json")
    assert done.code == 1
    assert "answers: 1 of" in done.err
    assert "first case 5" in done.err
    assert "samevec parity --bisect names the operator" in done.err


def test_bisect_names_the_first_operator_with_other_bits(home: Path, cli: Callable[..., Done]) -> None:
    done = cli("parity", "--lock", "toy", "--model", TOYS[0], "--home", home, "--bisect")
    assert done.code == 0, done.err
    assert done.out.count("every node gave the bits of the export") == 3
    artifact = artifact_of(home)
    record = json.loads(artifact.answers_path.read_bytes())
    case, nodes = next(iter(record["nodes"].items()))
    place = next(i for i, node in enumerate(nodes) if node[1] == "Attention")
    for node in nodes[place:]:
        node[2] = "0" * 64
    rewrite(artifact, record)
    done = cli("parity", "--lock", "toy", "--model", TOYS[0], "--home", home, "--bisect")
    assert done.code == 1
    assert f"case {case}: the first node with other bits is {nodes[place][0]} (Attention)" in done.out


def test_the_self_test_needs_no_model(tmp_path: Path) -> None:
    done = samevec("parity", "--selftest", folder=tmp_path)
    assert done.code == 0, done.err
    assert "every kernel gives its hash on" in done.out


def test_an_export_on_another_processor_has_the_same_bytes_and_answers(exported: ToyHome, tmp_path: Path) -> None:
    """Under emulation; the reference, which PyTorch computes, is no part of it."""
    if haswell.problem is not None:
        pytest.skip(haswell.problem)
    transformers: Any = importlib.import_module("transformers")
    (snapshot,) = (path for path in (exported.path / "snapshots" / TOYS[0]).iterdir() if path.is_dir())
    config = tmp_path / "config.json"
    config.write_text(json.dumps(transformers.AutoConfig.from_pretrained(str(snapshot)).to_dict()))
    said = haswell.run(SECOND_EXPORT, "toy", TOYS[0], str(exported.path), str(tmp_path), str(config))
    assert said.split() == ["avx2"]
    first = artifact_of(exported.path).manifest.files
    for name in ("model.onnx", "model.onnx.data", "trace.onnx"):
        assert sha256_file(tmp_path / name) == first[name].sha256, name


def test_the_commands_of_the_page_on_bits_print_what_it_says(exported: ToyHome, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "bits.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)\n# ([0-9a-f]{64})\n```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    environ = {**environment(tmp_path), "SAMEVEC_HOME": str(exported.path)}
    for command, printed in blocks:
        script = f'python() {{ {shlex.quote(sys.executable)} "$@"; }}\n{command}'
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.stdout.split()[:1] == [printed], done.stderr
