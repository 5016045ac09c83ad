"""Weights in the layout that the library's products read: panels of 32 columns, native/DEFINITION.md, "Products"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PANEL_COLUMNS", "pack", "unpack"]

#: Columns of a panel.
PANEL_COLUMNS = 32


def pack(weight: NDArray[Any]) -> NDArray[Any]:
    """Put a weight into panels of 32 columns.

    Parameters
    ----------
    weight : ndarray of float32 or of uint16 (the bits of bfloat16), shape (columns, inner)
        As torch's linear layers hold it: a row is one column of the product.

    Returns
    -------
    ndarray of the same type, shape (panels, inner, 32)
        In float32 entry j of a panel's row is its column j. In bfloat16 entries 2 j and 2 j + 1 are its columns j and
        16 + j: halves of one 32-bit word. Columns beyond the last are 0.
    """
    n_columns, inner = weight.shape
    n_panels = -(-n_columns // PANEL_COLUMNS)
    if n_columns % PANEL_COLUMNS:
        weight = np.concatenate([weight, np.zeros((-n_columns % PANEL_COLUMNS, inner), weight.dtype)])
    if weight.dtype == np.uint16:
        halves = weight.reshape(n_panels, 2, PANEL_COLUMNS // 2, inner)
        return np.ascontiguousarray(halves.transpose(0, 3, 2, 1)).reshape(n_panels, inner, PANEL_COLUMNS)
    return np.ascontiguousarray(weight.reshape(n_panels, PANEL_COLUMNS, inner).transpose(0, 2, 1))


def unpack(panels: NDArray[Any], n_columns: int) -> NDArray[Any]:
    """Return the weight, shape (n_columns, inner), that :func:`pack` put into panels."""
    n_panels, inner, _ = panels.shape
    if panels.dtype == np.uint16:
        words = panels.reshape(n_panels, inner, PANEL_COLUMNS // 2, 2).transpose(0, 3, 2, 1)
    else:
        words = panels.transpose(0, 2, 1)
    return np.ascontiguousarray(words).reshape(n_panels * PANEL_COLUMNS, inner)[:n_columns]
