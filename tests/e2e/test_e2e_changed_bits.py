"""What computes otherwise is refused: another order of a sum, an operator of ONNX Runtime's own, a strange thread."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import build
import onnx
import pytest
from e2e_tools import EMBEDDER, ROOT, adopt_digests, artifact_of, environment, samevec
from onnx import TensorProto, helper

from samevec.native.library import find_library

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from e2e_tools import Done, ToyHome

pytestmark = pytest.mark.model
ONE_RUN = str(ROOT / "tests" / "native" / "one_run.py")
TOY = ("--lock", "toy", "--model", EMBEDDER)


@dataclasses.dataclass(frozen=True)
class Reordered:
    """One line of the C++, changed so that a sum is taken in another order."""

    file: str
    right: str
    wrong: str
    kernels: set[str]
    operator: str


REORDERED = {
    "neighbours folded first": Reordered(
        "elementwise.inc",
        "for (int half = 16; half; half /= 2)\n    for (int j = 0; j < half; j++) s[j] += s[j + half];",
        "for (int half = 1; half < 32; half *= 2)\n    for (int j = 0; j < 32; j += 2 * half) s[j] += s[j + half];",
        {"norms"},
        # The squares of the toy's embeddings, few bits each, have exact sums in any order: the first RmsNorm has its
        # bits, and the norms of queries and keys are the first that do not.
        "Attention",
    ),
    "chains of 128": Reordered(
        "kernels.h",
        "constexpr int kChain = 256;",
        "constexpr int kChain = 128;",
        {"product-bfloat16", "product-float32"},
        "MatMulBf16",
    ),
}


@pytest.fixture(scope="module", params=REORDERED)
def reordered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reordered]:
    """A copy of the package whose library has one sum reordered, to be the working directory."""
    change, folder = REORDERED[request.param], tmp_path_factory.mktemp("reordered")
    shutil.copytree(ROOT / "native", folder / "native")
    source = folder / "native" / change.file
    text = source.read_text()
    assert text.count(change.right) == 1
    source.write_text(text.replace(change.right, change.wrong))
    shutil.copytree(ROOT / "samevec", folder / "samevec", ignore=shutil.ignore_patterns("__pycache__", "libsamevec.*"))
    target = build.host_target()
    library = folder / "samevec" / "native" / find_library().name
    build.build(target, library, compiler=build.find_compiler(target), sources=folder / "native")
    return folder, change


def test_the_self_test_names_the_kernels_of_a_reordered_sum(reordered: tuple[Path, Reordered]) -> None:
    folder, change = reordered
    done = samevec("parity", "--selftest", folder=folder)
    assert done.code == 1
    named = set(re.findall(r"^(\S+) .*DIFFERS$", done.out, re.MULTILINE))
    assert change.kernels <= named
    assert named <= {*change.kernels, "attention-causal", "attention-both-ways", "attention-window"}


def test_the_gate_refuses_a_reordered_sum_by_its_bits_alone(reordered: tuple[Path, Reordered], home: Path) -> None:
    folder, _ = reordered
    done = samevec("parity", *TOY, "--home", home, "--quick", "--json", folder=folder)
    assert done.code == 1
    verdict = json.loads(done.out)[0]
    cases, sweep = verdict["failures"]  # no cell fails: by value nothing is wrong
    assert re.match(r"answers: \d+ of 25 cases ", cases)
    assert re.match(r"answers: \d+ of 8 sweep rows ", sweep)


def test_a_server_with_a_reordered_sum_does_not_start(reordered: tuple[Path, Reordered], home: Path) -> None:
    """The receipt is about another library; and if it were not, the probe has other bits."""
    folder, _ = reordered
    done = samevec("serve", *TOY, "--home", home, "--port", "0", folder=folder)
    assert done.code == 3
    assert "native_library" in done.err
    assert "the start-up probe has other bits than at export, in case " in one_run(home, "probe", folder=folder)


def test_bisect_names_the_operator_of_a_reordered_sum(reordered: tuple[Path, Reordered], home: Path) -> None:
    folder, change = reordered
    done = samevec("parity", *TOY, "--home", home, "--bisect", folder=folder)
    assert done.code == 1, done.err
    found = re.findall(r"the first node with other bits is \S+ \((\w+)\)", done.out)
    assert set(found) == {change.operator}


def rms_norm_of_onnx(model: onnx.ModelProto) -> None:
    """Write the first RmsNorm in ONNX's own operators."""
    place, node = next((i, node) for i, node in enumerate(model.graph.node) if node.op_type == "RmsNorm")
    epsilon, (x, gain) = node.attribute[0].f, node.input
    made = [
        helper.make_node("Mul", [x, x], ["own.squares"]),
        helper.make_node("ReduceMean", ["own.squares", "own.axes"], ["own.mean"]),
        helper.make_node("Add", ["own.mean", "own.epsilon"], ["own.above_zero"]),
        helper.make_node("Sqrt", ["own.above_zero"], ["own.root"]),
        helper.make_node("Div", [x, "own.root"], ["own.unit"]),
        helper.make_node("Mul", ["own.unit", gain], [node.output[0]]),
    ]
    model.graph.initializer.append(helper.make_tensor("own.axes", TensorProto.INT64, [1], [-1]))
    model.graph.initializer.append(helper.make_tensor("own.epsilon", TensorProto.FLOAT, [1], [epsilon]))
    nodes = [*model.graph.node[:place], *made, *model.graph.node[place + 1 :]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def test_one_operator_of_onnx_runtimes_own_is_refused_though_within_the_tolerance(
    home: Path, cli: Callable[..., Done]
) -> None:
    artifact = artifact_of(home, EMBEDDER)
    model = onnx.load(str(artifact.graph_path), load_external_data=False)
    rms_norm_of_onnx(model)
    artifact.graph_path.write_bytes(model.SerializeToString())
    adopt_digests(artifact)
    done = cli("parity", *TOY, "--home", home, "--quick", "--json")
    assert done.code == 1
    verdict = json.loads(done.out)[0]
    assert all(cell["passed"] for cell in verdict["cells"])
    assert any(failure.startswith("answers: ") for failure in verdict["failures"])


def one_run(home: Path, how: str, *, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, ONE_RUN, "toy", EMBEDDER, str(home), how],
        cwd=folder,
        env={**environment(folder), "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("unchanged", "computed"),
        ("probe", "computed"),
        ("flushed", "this thread flushes denormals to zero"),
        ("upward", "this thread does not round to nearest"),
    ],
)
def test_a_thread_that_computes_otherwise_is_refused_by_name(
    exported: ToyHome, tmp_path: Path, how: str, words: str
) -> None:
    assert words in one_run(exported.path, how, folder=tmp_path)
