"""What callers ask for is what runs: session calls as the fake session records them, through the public models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from makers import embedder, fake_engine, reranker, rows

from samevec.errors import EmptyInputError, InputError
from samevec.runtime.limits import AdaptiveLimit, MemoryGuard
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from samevec.runtime.batching.plan import Policy

TEXTS = ["a", "bb" * 9, "c" * 30, "a", "dd"]
PAIRS = [("q", text) for text in TEXTS]


def row_counts(session: FakeSession) -> list[int]:
    return [n_rows for n_rows, _ in session.runs]


@pytest.mark.parametrize(("policy", "n_calls"), [("samevec", 4), ("native", 5)])  # only ours computes "a" once
def test_batch_size_1_gives_calls_of_one_item(policy: Policy, n_calls: int) -> None:
    vectors, logits = FakeSession(), FakeSession(1)
    found = embedder(vectors).encode(TEXTS, batch_size=1, policy=policy)
    assert row_counts(vectors) == [1] * n_calls
    assert found.tobytes() == embedder(FakeSession()).encode(TEXTS).tobytes()
    scores = reranker(logits).score(PAIRS, batch_size=1, policy=policy)
    assert row_counts(logits) == [1] * n_calls
    assert scores.tobytes() == reranker(FakeSession(1)).score(PAIRS).tobytes()


@pytest.mark.parametrize("texts", [["v", "w", "x", "y", "z"], ["v", "w" * 9, "x" * 20, "y" * 99, "z" * 50]])
def test_five_inputs_at_8_under_a_limit_of_2(texts: list[str]) -> None:
    vectors, logits = FakeSession(), FakeSession(1)
    found = embedder(vectors, max_rows=2).encode(texts, batch_size=8)
    assert row_counts(vectors) == [2, 2, 1]
    assert found.tobytes() == embedder(FakeSession()).encode(texts).tobytes()
    pairs = [("q", text) for text in texts]
    scores = reranker(logits, max_rows=2).score(pairs, batch_size=8)
    assert row_counts(logits) == [2, 2, 1]
    assert scores.tobytes() == reranker(FakeSession(1)).score(pairs).tobytes()


def test_equal_inputs_fill_runs_from_the_first_on_without_being_asked() -> None:
    session = FakeSession()
    embedder(session, max_rows=2).encode(["v", "w", "x", "y", "z"])
    assert row_counts(session) == [2, 2, 1]


def test_one_input_is_one_call_of_one_item() -> None:
    session = FakeSession()
    embedder(session).encode(["alone"], batch_size=32)
    assert row_counts(session) == [1]


@pytest.mark.parametrize("policy", ["samevec", "native"])
def test_no_input_is_no_call(policy: Policy) -> None:
    session = FakeSession()
    with pytest.raises(EmptyInputError):
        embedder(session).encode([], policy=policy)
    with pytest.raises(EmptyInputError):
        reranker(session).score([], policy=policy)
    assert session.runs == []


def test_duplicates_are_one_item() -> None:
    session = FakeSession()
    vectors = embedder(session).encode(["same"] * 50, batch_size=8)
    assert row_counts(session) == [1]
    assert len({row.tobytes() for row in vectors}) == 1


def test_native_runs_follow_characters_and_fixed_rows() -> None:
    session = FakeSession()
    model = embedder(session)
    texts = ["a" * n for n in (3, 50, 7, 20, 50)]
    lengths = [row.n_tokens for row in model.tokenize(texts)]
    vectors = model.encode(texts, batch_size=2, policy="native")
    widths = [-(-lengths[i] // 4) * 4 for i in (1, 3, 0)]
    assert session.runs == [(2, widths[0]), (2, widths[1]), (1, widths[2])]
    assert vectors.tobytes() == model.encode(texts).tobytes()


def test_native_takes_32_pairs_a_run_and_the_engines_limit_still_holds() -> None:
    for max_rows, expected in ((64, [32, 32, 6]), (16, [16, 16, 16, 16, 6])):
        session = FakeSession(1)
        pairs = [("q", "d" * (1 + i % 7)) for i in range(70)]
        reranker(session, max_rows=max_rows).score(pairs, policy="native")
        assert row_counts(session) == expected


def test_an_unknown_policy_is_refused_before_anything_runs() -> None:
    wrong: Any = "sorted"
    session = FakeSession()
    message = r"^policy: 'sorted' given, one of samevec, native is needed$"
    with pytest.raises(InputError, match=message):
        embedder(session).encode(["a"], policy=wrong)
    with pytest.raises(InputError, match=message):
        reranker(session).score([("a", "b")], policy=wrong)
    assert session.runs == []


# Under pressure, what fits is kept: splitting one microbatch does not halve the limit again with every piece.


def test_the_limit_stays_at_what_is_known_to_fit() -> None:
    limit = AdaptiveLimit()
    limit.shrink(32, fitting=20)
    assert limit.rows == 20
    limit.shrink(20, fitting=3)
    assert limit.rows == 10


def test_after_a_split_plans_fit_the_memory() -> None:
    session = FakeSession()
    guard = MemoryGuard(bytes_per_token=10, usable_share=1.0, available_bytes=lambda: 3 * 8 * 10)
    engine = fake_engine(session, memory=guard)
    given = rows([7] * 8)
    for _ in range(2):
        raw = engine.run_rows(given, batch_size=8)
        assert row_counts(session) == [3, 3, 2]
        assert engine.limit.rows == 3
        np.testing.assert_array_equal(raw, [session.row(list(row.ids)) for row in given])
        session.runs.clear()


def test_memory_that_comes_back_is_used_again() -> None:
    room = [8]
    session = FakeSession()
    guard = MemoryGuard(bytes_per_token=1, usable_share=1.0, available_bytes=lambda: room[0])
    engine = fake_engine(session, memory=guard, limit=AdaptiveLimit(recover_after=2))
    given = rows([4] * 8)
    engine.run_rows(given, batch_size=8)
    assert row_counts(session) == [2, 2, 2, 2]
    room[0] = 10**9
    for _ in range(6):
        engine.run_rows(given, batch_size=8)
    assert engine.limit.rows is None
    assert row_counts(session)[-1] == 8
