"""The library as Python sees it: values, shapes, and every reason why one is not used."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import build
import numpy as np
import pytest

from samevec import errors
from samevec.native import library as native_library
from samevec.native.library import ARITHMETIC, find_library, load_library, open_library
from samevec.native.selftest import differing_kernels, expected_hashes

if TYPE_CHECKING:
    from pathlib import Path

WAYS_OUT = "build it (`python native/build.py` in a checkout, elsewhere reinstall samevec), or use --profile portable"
#: The library's functions, all but the first doing nothing.
STUB = """
#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int samevec_arithmetic() {{ return {arithmetic}; }}
EXPORTED const char* samevec_instruction_set() {{ return "avx2"; }}
EXPORTED const char* samevec_float_environment() {{ return ""; }}
EXPORTED void samevec_unit_norm() {{}}
EXPORTED void samevec_sigmoid() {{}}
EXPORTED long long samevec_selftest(char*, long long) {{ return -1; }}
"""


def stub_library(folder: Path, source: str) -> Path:
    target = build.host_target()
    try:
        compiler = build.find_compiler(target)
    except build.CompilerMissingError as error:
        pytest.skip(str(error))
    sources = folder / "sources"
    sources.mkdir()
    (sources / "stub.cpp").write_text(source, encoding="ascii")
    path = folder / target.library_name
    build.build(target, path, compiler=compiler, sources=sources)
    return path


def test_it_says_what_it_is() -> None:
    library = load_library()
    assert library is load_library()
    assert library.path == find_library()
    assert library.arithmetic == ARITHMETIC
    assert library.instruction_set in ("avx512", "avx2", "neon")
    assert library.digest == hashlib.sha256(library.path.read_bytes()).hexdigest()


def test_unit_norm_divides_each_row_by_its_length() -> None:
    vectors = np.array([[3, 4], [0, 2], [0, 0]], dtype=np.float32)
    expected = np.array([[0.6, 0.8], [0, 1], [np.nan, np.nan]], dtype=np.float32)
    result = load_library().unit_norm(vectors)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)


def test_sigmoid_is_computed_in_double() -> None:
    result = load_library().sigmoid(np.array([0, 1000, -1000, np.nan], dtype=np.float32))
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, [0.5, 1, 0, np.nan])


def test_input_need_not_be_contiguous() -> None:
    library = load_library()
    whole = np.random.default_rng(1).standard_normal((6, 50)).astype(np.float32)
    for part in (whole[::2, ::3], whole[::-1], whole.T, whole[:, 7:], np.asfortranarray(whole)):
        np.testing.assert_array_equal(library.unit_norm(part), library.unit_norm(part.copy()))
        np.testing.assert_array_equal(library.sigmoid(part[0]), library.sigmoid(part[0].copy()))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_nothing_gives_nothing(shape: tuple[int, int]) -> None:
    assert load_library().unit_norm(np.empty(shape, dtype=np.float32)).shape == shape
    assert load_library().sigmoid(np.empty(0, dtype=np.float32)).shape == (0,)


def test_a_missing_file_is_named_with_the_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native_library, "__file__", str(tmp_path / "library.py"))
    with pytest.raises(errors.NativeLibraryError) as caught:
        find_library()
    expected = tmp_path / build.host_target().library_name
    assert str(caught.value) == f"{expected}: there is no such file; {WAYS_OUT}"
    assert errors.exit_code(caught.value) == 3


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libsamevec.so"
    path.write_text("not a library")
    with pytest.raises(errors.NativeLibraryError, match=r"libsamevec\.so: it cannot be loaded \(.*\); build it"):
        open_library(path)
    with pytest.raises(errors.NativeLibraryError, match="it cannot be loaded"):
        open_library(tmp_path / "absent.so")


def test_a_library_without_our_functions_is_refused(tmp_path: Path) -> None:
    path = stub_library(tmp_path, 'extern "C" int samevec_arithmetic() { return 1; }')
    with pytest.raises(errors.NativeLibraryError, match=r"it cannot be loaded \(.*samevec_arithmetic"):
        open_library(path)


def test_another_definition_is_refused(tmp_path: Path) -> None:
    path = stub_library(tmp_path, STUB.format(arithmetic=ARITHMETIC + 1))
    with pytest.raises(errors.NativeLibraryError) as caught:
        open_library(path)
    problem = f"it computes by definition {ARITHMETIC + 1}, this samevec by {ARITHMETIC}"
    assert str(caught.value) == f"{path}: {problem}; {WAYS_OUT}"


def test_a_self_test_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    library = open_library(stub_library(tmp_path, STUB.format(arithmetic=ARITHMETIC)))
    with pytest.raises(errors.NativeLibraryError, match="its self-test writes more than"):
        library.selftest()


def test_kernels_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library()
    found = dict(expected_hashes())
    found["gelu"] = "0" * 16
    del found["tanh"]
    found["new"] = "1" * 16
    monkeypatch.setattr(library, "selftest", lambda: found)
    assert differing_kernels(library) == ["gelu", "new", "tanh"]


def test_the_self_test_refuses_a_thread_that_rounds_otherwise() -> None:
    code = (
        "import ctypes\n"
        "from samevec.cli.parity import run_selftest\n"
        "assert run_selftest(say=lambda line: None) == 0\n"
        "ctypes.CDLL(None).fesetround(0x800)\n"
        "print(run_selftest(say=print))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    if platform.machine() != "x86_64":
        pytest.skip("FE_UPWARD has another number on other processors")
    assert "this thread does not round to nearest, so that no kernel may be used here" in done.stdout
    assert done.stdout.endswith("1\n"), done.stderr
