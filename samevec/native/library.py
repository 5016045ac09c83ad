"""Finding and loading the native library."""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samevec.digest import sha256_file
from samevec.errors import NativeLibraryError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NativeLibrary", "find_library", "load_library"]


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The loaded library."""

    path: Path
    arithmetic: int
    instruction_set: str
    digest: str
    _handle: Any

    def unit_norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return rows scaled to unit length."""
        rows = np.ascontiguousarray(rows)
        result = np.empty_like(rows)
        shape = (ctypes.c_int64(n) for n in rows.shape)
        self._handle.samevec_unit_norm(ctypes.c_void_p(rows.ctypes.data), *shape, ctypes.c_void_p(result.ctypes.data))
        return result

    def sigmoid(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the sigmoid of each value."""
        values = np.ascontiguousarray(values)
        result = np.empty(values.shape, np.float64)
        self._handle.samevec_sigmoid(
            ctypes.c_void_p(values.ctypes.data), ctypes.c_int64(values.size), ctypes.c_void_p(result.ctypes.data)
        )
        return result


def find_library() -> Path:
    """Return where the library lies.

    Raises
    ------
    NativeLibraryError
        It is not there.
    """
    path = Path(__file__).with_name("libsamevec.dylib" if sys.platform == "darwin" else "libsamevec.so")
    if not path.is_file():
        raise NativeLibraryError(f"{path.name} is not beside the package")
    return path


@functools.cache
def load_library() -> NativeLibrary:
    """Return the library, loaded once a process.

    Raises
    ------
    NativeLibraryError
        It cannot be loaded here.
    """
    path = find_library()
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeLibraryError(f"{path.name} cannot be loaded: {error}") from error
    handle.samevec_instruction_set.restype = ctypes.c_char_p
    return NativeLibrary(
        path,
        handle.samevec_arithmetic(),
        handle.samevec_instruction_set().decode(),
        f"sha256:{sha256_file(path)}",
        handle,
    )
