"""The native library: finds, loads, checks and calls it."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from samevec.digest import sha256_file
from samevec.errors import NativeLibraryError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ARITHMETIC", "NativeLibrary", "find_library", "load_library", "open_library", "read_hashes"]

#: The definition of every operator that this samevec was written for: ``native/DEFINITION.md``.
ARITHMETIC = 1

_SELFTEST_BYTES = 1 << 16
_NO_KERNELS = "this processor lacks AVX2 or FMA, which the library needs, or lacks what SAMEVEC_INSTRUCTION_SET names"
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "samevec_arithmetic": (ctypes.c_int, ()),
    "samevec_instruction_set": (ctypes.c_char_p, ()),
    "samevec_float_environment": (ctypes.c_char_p, ()),
    "samevec_unit_norm": (None, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)),
    "samevec_sigmoid": (None, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)),
    "samevec_selftest": (ctypes.c_int64, (ctypes.c_void_p, ctypes.c_int64)),
}


class NativeLibrary:
    """The loaded library.

    Attributes
    ----------
    path : Path
        The file, for ``register_custom_ops_library``.
    arithmetic : int
        The version of ``native/DEFINITION.md`` it computes by.
    instruction_set : str
        ``"avx512"``, ``"avx2"`` or ``"neon"``; it changes the speed and no result.
    digest : str
        sha256 of the file, 64 hex digits.

    Raises
    ------
    NativeLibraryError
        The file is no library, not this samevec's, or not for this processor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest, self._functions = _loaded(path)
        self.arithmetic = int(self._functions.samevec_arithmetic())
        if self.arithmetic != ARITHMETIC:
            raise NativeLibraryError(path, f"it computes by definition {self.arithmetic}, this samevec by {ARITHMETIC}")
        self.instruction_set = bytes(self._functions.samevec_instruction_set()).decode("ascii")
        if not self.instruction_set:
            raise NativeLibraryError(path, _NO_KERNELS, rebuild=False)

    def unit_norm(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return each row of float32 (n_rows, n) divided by its length; NaN in the row of a zero vector."""
        n_rows, n = vectors.shape
        given = np.ascontiguousarray(vectors, dtype=np.float32)
        result = np.empty((n_rows, n), dtype=np.float32)
        if result.size:
            self._functions.samevec_unit_norm(given.ctypes.data, n_rows, n, result.ctypes.data)
        return result

    def sigmoid(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return ``1 / (1 + exp(-x))`` in float64 for each float32 logit."""
        (n,) = logits.shape
        given = np.ascontiguousarray(logits, dtype=np.float32)
        result = np.empty(n, dtype=np.float64)
        if n:
            self._functions.samevec_sigmoid(given.ctypes.data, n, result.ctypes.data)
        return result

    @property
    def float_environment_problem(self) -> str:
        """Return what is wrong with this thread's float environment, such as flushed denormals; empty if nothing."""
        return bytes(self._functions.samevec_float_environment()).decode("ascii")

    def selftest(self) -> dict[str, str]:
        """Return a hash of the results of each kernel for fixed input, by the kernel's name."""
        text = ctypes.create_string_buffer(_SELFTEST_BYTES)
        n_bytes = int(self._functions.samevec_selftest(text, _SELFTEST_BYTES))
        if n_bytes < 0:
            raise NativeLibraryError(self.path, f"its self-test writes more than {_SELFTEST_BYTES} bytes")
        return read_hashes(text.raw[:n_bytes].decode("ascii"))


def find_library() -> Path:
    """Return the path of the library in the package; NativeLibraryError if it is not there."""
    name = "libsamevec.dylib" if sys.platform == "darwin" else "libsamevec.so"
    path = Path(__file__).with_name(name)
    if not path.is_file():
        raise NativeLibraryError(path, "there is no such file")
    return path


@functools.cache
def load_library() -> NativeLibrary:
    """Return the package's library, loaded once a process; NativeLibraryError if it cannot be used here."""
    return open_library(find_library())


def open_library(path: Path) -> NativeLibrary:
    """Load a library by its path; NativeLibraryError if it cannot be used here."""
    return NativeLibrary(path)


def read_hashes(text: str) -> dict[str, str]:
    """Return the hash of each kernel from lines of ``name hash``."""
    return dict(line.split() for line in text.splitlines())


def _loaded(path: Path) -> tuple[str, ctypes.CDLL]:
    """Return the file's digest, and its functions with their types."""
    try:
        digest = sha256_file(path)
        functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NativeLibraryError(path, f"it cannot be loaded ({error})") from error
    return digest, functions
