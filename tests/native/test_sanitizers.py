"""The native operators under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer: see ``sanitize.cpp``."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import build
import pytest

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O1", "-g1", "-ffp-contract=off", "-fno-math-errno", "-fno-omit-frame-pointer")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread")
CASES = 100
"""Random cases of each operator; half of them may be wrong."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the leak sanitizer is for Linux")


def call(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitize")
    target = build.host_target()
    try:
        command = [*build.find_compiler(target).command, *SANITIZERS]
    except build.CompilerMissingError as error:
        pytest.skip(str(error))
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}")
    if call([*command, str(probe), "-o", str(folder / "probe")]).returncode != 0:
        pytest.skip("the C++ compiler here has no sanitizers")
    sources = {**build.source_files(target), HERE / "sanitize.cpp": ()}

    def compiled(source: Path) -> Path:
        to = folder / f"{source.stem}.o"
        done = call([*command, *FLAGS, *sources[source], f"-I{build.SOURCES}", "-c", str(source), "-o", str(to)])
        assert done.returncode == 0, done.stderr
        return to

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [str(made) for made in pool.map(compiled, sources)]
    linked = call([*command, *objects, "-o", str(folder / "driver")])
    assert linked.returncode == 0, linked.stderr
    return folder / "driver"


@pytest.mark.parametrize("instruction_set", ["", "avx2"])
def test_no_shape_no_failure_and_no_lack_of_memory_breaks_an_operator(driver: Path, instruction_set: str) -> None:
    if instruction_set and build.host_target().machine != "x86_64":
        pytest.skip("avx2 is an instruction set of x86-64")
    done = call([str(driver), "fuzz", "1", str(CASES)], SAMEVEC_INSTRUCTION_SET=instruction_set)
    assert done.returncode == 0, done.stderr
    first, *operators = done.stdout.splitlines()
    assert first.startswith(instruction_set)
    assert len(operators) == 17
    assert not [line for line in operators if ": 0 computed" in line]


def test_a_processor_without_the_instructions_is_refused_in_words(driver: Path) -> None:
    done = call([str(driver), "unsupported"], SAMEVEC_INSTRUCTION_SET="another")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("samevec: ")
