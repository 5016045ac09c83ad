"""Properties of fixed shapes: every run has one, waste is bounded, and there are few."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samevec.errors import InputError
from samevec.runtime.batching.buckets import (
    LEAST_TOKENS,
    MANY_ROWS,
    Piece,
    bucket_shapes,
    cover,
    fill_bucket,
    stale_entries,
)
from samevec.runtime.collate import collate
from samevec.runtime.rows import TokenRow

LIMITS = st.integers(1, 9000)
BUDGETS = st.integers(1, 20000)


def lengths_up_to(limit: int, data: st.DataObject) -> list[int]:
    return data.draw(st.lists(st.integers(1, limit), min_size=1, max_size=40))


@given(LIMITS, BUDGETS, st.data())
def test_every_run_is_covered_once_and_in_order(limit: int, budget: int, data: st.DataObject) -> None:
    lengths = lengths_up_to(limit, data)
    shapes = bucket_shapes(limit, token_budget=budget)
    pieces = cover(lengths, shapes)
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(len(lengths)))
    for piece in pieces:
        assert piece.bucket in shapes
        assert piece.stop - piece.start <= piece.bucket.n_rows
        assert max(lengths[piece.start : piece.stop]) <= piece.bucket.n_tokens <= limit


@given(LIMITS, BUDGETS, st.data())
def test_waste_is_bounded(limit: int, budget: int, data: st.DataObject) -> None:
    lengths = lengths_up_to(limit, data)
    for piece in cover(lengths, bucket_shapes(limit, token_budget=budget)):
        assert piece.bucket.n_tokens <= max(LEAST_TOKENS, 2 * max(lengths[piece.start : piece.stop]))
        assert piece.bucket.n_rows <= 2 * (piece.stop - piece.start)
        assert piece.bucket.padded_tokens <= budget or piece.bucket.n_rows == 1


@given(LIMITS, BUDGETS, st.data())
def test_no_cover_is_dearer_than_runs_of_one_row_or_than_eights_as_they_come(
    limit: int, budget: int, data: st.DataObject
) -> None:
    lengths = lengths_up_to(limit, data)
    shapes = bucket_shapes(limit, token_budget=budget)
    run_tokens = 2 * shapes[0].n_tokens

    def cost(pieces: list[Piece]) -> int:
        return sum(piece.bucket.padded_tokens + run_tokens for piece in pieces)

    found = cost(cover(lengths, shapes))
    assert found <= sum(cost(cover([n], shapes)) for n in lengths)
    wide = [shape.n_tokens for shape in shapes if shape.n_rows == MANY_ROWS and shape.n_tokens >= max(lengths)]
    if wide:
        assert found <= -(-len(lengths) // MANY_ROWS) * (MANY_ROWS * min(wide) + run_tokens)


@given(LIMITS, BUDGETS)
def test_there_are_few_shapes(limit: int, budget: int) -> None:
    shapes = bucket_shapes(limit, token_budget=budget)
    assert len(set(shapes)) == len(shapes) <= 2 * (1 + max(0, math.ceil(math.log2(limit / LEAST_TOKENS))))
    assert list(shapes) == sorted(shapes)
    assert {shape.n_rows for shape in shapes} <= {1, MANY_ROWS}


def test_the_products_shapes_are_as_many_as_the_docs_say() -> None:
    assert len(bucket_shapes(8192, token_budget=4096)) == 14


def test_a_row_longer_than_the_model_takes_is_refused() -> None:
    with pytest.raises(InputError, match="65 tokens, the longest compiled shape has 64"):
        cover([3, 65], bucket_shapes(64, token_budget=512))


@given(st.lists(st.integers(1, 64), min_size=1, max_size=20), st.integers(1, 8))
def test_filling_keeps_rows_and_shows_added_ones_a_token(lengths: list[int], multiple: int) -> None:
    rows = [TokenRow(tuple(range(1, n + 1)), (1,) * n) for n in lengths]
    features = collate(rows, pad_token_id=9, pad_to_multiple=multiple)
    for piece in cover(lengths, bucket_shapes(64, token_budget=512)):
        filled = fill_bucket(features, piece)
        n_rows = piece.stop - piece.start
        assert filled.shape == (piece.bucket.n_rows, piece.bucket.n_tokens)
        assert filled.attention_mask.sum(axis=1).tolist() == lengths[piece.start : piece.stop] + [1] * (
            piece.bucket.n_rows - n_rows
        )
        assert filled.token_type_ids is not None
        for i, length in enumerate(lengths[piece.start : piece.stop]):
            assert np.array_equal(filled.input_ids[i, :length], np.arange(1, length + 1))
            assert filled.token_type_ids[i].sum() == length


ENTRIES = st.lists(st.tuples(st.integers(0, 100), st.floats(0, 9)), max_size=12)


@given(ENTRIES, st.integers(0, 500))
def test_a_cache_keeps_what_was_used_last_within_its_bound(sizes: list[tuple[int, float]], most_bytes: int) -> None:
    entries = [(f"e{i}", size, used) for i, (size, used) in enumerate(sizes)]
    gone = stale_entries(entries, most_bytes=most_bytes)
    kept = [entry for entry in entries if entry[0] not in gone]
    assert sum(size for _, size, _ in kept) <= most_bytes
    newest_gone = max((used for name, _, used in entries if name in gone), default=0.0)
    assert all(used >= newest_gone for *_, used in kept)
    if gone:  # not one more than needed
        back = sum(size for name, size, _ in entries if name not in gone[:-1])
        assert back > most_bytes


def test_what_is_in_use_stays_though_it_alone_is_too_much() -> None:
    assert stale_entries([("a", 9, 0.0), ("b", 9, 1.0)], most_bytes=3, keep="a") == ["b"]
    assert Piece(0, 1, bucket_shapes(32, token_budget=1)[0]).stop == 1
