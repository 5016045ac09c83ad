"""What happens to raw rows, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from samevec.errors import InputError, NativeLibraryError, NonFiniteOutputError
from samevec.runtime import pooling
from samevec.runtime.pooling import activate, l2_normalize, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from samevec.native.library import NativeLibrary


def vectors(n_rows: int = 33, width: int = 1024, *, seed: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(n_rows, width)).astype(np.float32)


@pytest.mark.parametrize("width", [1, 3, 31, 256, 384, 1024])
def test_a_rows_bits_do_not_depend_on_how_many_rows_there_are(width: int) -> None:
    raw = vectors(width=width)
    together = l2_normalize(raw)
    assert together.dtype == np.float32
    assert together.shape == raw.shape
    for i in range(len(raw)):
        assert l2_normalize(raw[i : i + 1]).tobytes() == together[i].tobytes()
    assert l2_normalize(raw[::-1]).tobytes() == together[::-1].tobytes()


def test_a_rows_bits_do_not_depend_on_memory_layout() -> None:
    raw = vectors()
    expected = l2_normalize(raw).tobytes()
    wide = np.concatenate([raw, raw], axis=1)
    assert l2_normalize(np.asfortranarray(raw)).tobytes() == expected
    assert l2_normalize(wide[:, :1024]).tobytes() == expected
    assert l2_normalize(np.repeat(raw, 2, axis=0)[::2]).tobytes() == expected


def test_norms_are_one() -> None:
    for scale in (1e-30, 1e-10, 1.0, 1e25, 1e37):  # squares of the outer ones do not fit float32
        norms = np.linalg.norm(l2_normalize(vectors() * np.float32(scale)).astype(np.float64), axis=1)
        np.testing.assert_allclose(norms, 1, atol=1e-6, rtol=0)


def test_numpy_stands_in_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> NativeLibrary:
        raise NativeLibraryError(Path("libsamevec.so"), "there is no such file")

    logits = vectors(200, 1, seed=5) * np.float32(20)
    ours, scores = l2_normalize(vectors()), activate(logits, "sigmoid")
    monkeypatch.setattr(pooling, "load_library", missing)
    pooling._library.cache_clear()
    try:
        np.testing.assert_allclose(l2_normalize(vectors()), ours, atol=1e-7, rtol=0)
        np.testing.assert_allclose(activate(logits, "sigmoid"), scores, atol=1e-7, rtol=1e-6)
        assert l2_normalize(np.full((1, 4), 3e38, np.float32)).tolist() == [[0.5] * 4]
    finally:
        pooling._library.cache_clear()


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_row_without_a_direction_is_refused_by_position(bad: float) -> None:
    raw = vectors(5, 8)
    raw[[1, 3]] = bad
    calls: list[Callable[[], object]] = [
        lambda: l2_normalize(raw),
        lambda: shorten(raw, dimensions=4, normalize=True),
        lambda: shorten(raw, dimensions=4, normalize=True, renormalize=False),
    ]
    for call in calls:
        with pytest.raises(NonFiniteOutputError) as caught:
            call()
        assert caught.value.indices == (1, 3)
        assert str(caught.value) == (
            "the output for item 1, 3 is zero or not finite; it was withheld. Run `samevec parity` on this machine"
        )


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_no_such_row_leaves_without_normalisation_either(bad: float) -> None:
    raw = vectors(5, 8)
    raw[2] = bad
    with pytest.raises(NonFiniteOutputError) as caught:
        shorten(raw, dimensions=None, normalize=False)
    assert caught.value.indices == (2,)


def test_openais_rule_normalises_the_prefix() -> None:
    raw = vectors()
    short = shorten(raw, dimensions=256, normalize=True)
    assert short.tobytes() == l2_normalize(raw[:, :256]).tobytes()
    full = shorten(raw, dimensions=None, normalize=True)
    again = full[:, :256] / np.linalg.norm(full[:, :256], axis=1, keepdims=True)
    np.testing.assert_allclose(short, again, atol=1e-6, rtol=0)


def test_truncate_dim_cuts_the_normalised_vector() -> None:
    raw = vectors()
    short = shorten(raw, dimensions=256, normalize=True, renormalize=False)
    assert short.tobytes() == np.ascontiguousarray(l2_normalize(raw)[:, :256]).tobytes()
    assert (np.linalg.norm(short, axis=1) < 0.6).all()
    assert short.flags.c_contiguous


def test_without_normalisation_the_prefix_is_the_raw_one() -> None:
    raw = vectors()
    for renormalize in (True, False):
        short = shorten(raw, dimensions=32, normalize=False, renormalize=renormalize)
        assert short.tobytes() == np.ascontiguousarray(raw[:, :32]).tobytes()
        assert short.flags.c_contiguous
    assert shorten(raw, dimensions=None, normalize=False).tobytes() == raw.tobytes()


def test_the_full_width_is_the_same_under_either_rule() -> None:
    raw = vectors()
    full = shorten(raw, dimensions=None, normalize=True)
    for renormalize in (True, False):
        assert shorten(raw, dimensions=1024, normalize=True, renormalize=renormalize).tobytes() == full.tobytes()


def test_the_raw_rows_are_left_alone() -> None:
    raw = vectors()
    before = raw.tobytes()
    for normalize in (True, False):
        shorten(raw, dimensions=16, normalize=normalize)
    activate(raw, "sigmoid")
    assert raw.tobytes() == before


def test_sigmoid_of_extreme_logits_is_finite_and_exact_at_the_ends() -> None:
    top = np.finfo(np.float32).max
    logits = np.array([[-top], [-1e4], [-89], [-0.0], [0.0], [89], [1e4], [top]], dtype=np.float32)
    scores = activate(logits, "sigmoid")
    assert scores.dtype == np.float32
    assert scores.shape == (8,)
    assert scores[[0, 1, 3, 4, 5, 6, 7]].tolist() == [0, 0, 0.5, 0.5, 1, 1, 1]
    assert 0 < scores[2] < 1e-38


def test_sigmoid_is_the_mathematical_one() -> None:
    logits = np.linspace(-20, 20, 4001, dtype=np.float32)[:, None]
    scores = activate(logits, "sigmoid")
    exact = 1 / (1 + np.exp(-logits[:, 0].astype(np.float64)))
    np.testing.assert_allclose(scores, exact, rtol=5e-7, atol=0)
    assert (np.diff(scores) >= 0).all()
    # The reranker's card, computed there in half precision: 1e-3 tells one sigmoid from none and from two.
    card = activate(np.array([[2.1387], [2.4609], [-1.6729]], dtype=np.float32), "sigmoid")
    np.testing.assert_allclose(card, [0.8945664, 0.9213594, 0.15742092], atol=1e-3, rtol=0)


def test_a_scores_bits_do_not_depend_on_how_many_scores_there_are() -> None:
    logits = np.linspace(-9, 9, 67, dtype=np.float32)[:, None]
    together = activate(logits, "sigmoid")
    for i in range(len(logits)):
        assert activate(logits[i : i + 1], "sigmoid").tobytes() == together[i].tobytes()
    assert activate(logits[::-1], "sigmoid").tobytes() == together[::-1].tobytes()


@pytest.mark.parametrize("activation", [None, "identity"])
def test_raw_logits_are_the_logits(activation: str | None) -> None:
    logits = vectors(7, 1)
    raw = activate(logits, activation)
    assert raw.shape == (7,)
    assert raw.tobytes() == logits.tobytes()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(InputError, match=r"^activation: activation 'softmax' is not known$"):
        activate(vectors(1, 1), "softmax")
