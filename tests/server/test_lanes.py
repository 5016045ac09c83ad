"""A lane by itself: which rows wait, whatever has come, gone, died and expired."""

from __future__ import annotations

import random

import pytest

from samevec.errors import DeadlineExceededError
from samevec.runtime.rows import TokenRow
from samevec.server.queue.jobs import Job, QueuedRow
from samevec.server.queue.work_queue import Lane, QueueLimits


def add(lane: Lane, lengths: list[int], *, deadline_s: float | None = None) -> list[QueuedRow]:
    tokens = [TokenRow((i, *range(length - 1))) for i, length in enumerate(lengths)]
    job = Job.of(tokens, batch_size=None, deadline_s=deadline_s, item_field="input")
    queued = [QueuedRow(job, slot, row.n_tokens) for slot, row in enumerate(job.rows)]
    lane.add(queued)
    return queued


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_that_wait_are_those_neither_taken_nor_dead(seed: int) -> None:
    draw = random.Random(seed)
    lane = Lane(QueueLimits(token_budget=40, max_rows=4), cap=lambda rows: rows)
    waiting: set[int] = set()
    rows: dict[int, QueuedRow] = {}
    now_s = 0.0
    for _ in range(200):
        step = draw.choice(["add", "add", "pop", "fail", "time"])
        if step == "add":
            deadline_s = draw.choice([None, now_s + draw.uniform(0, 5)])
            added = add(lane, [draw.randint(1, 20) for _ in range(draw.randint(1, 6))], deadline_s=deadline_s)
            rows |= {id(row): row for row in added}
            waiting |= {id(row) for row in added}
        elif step == "pop" and lane:
            taken = {id(row) for row in lane.pop()}
            assert taken <= waiting
            waiting -= taken
        elif step == "fail" and waiting:
            rows[draw.choice(sorted(waiting))].job.future.cancel()
        else:
            now_s += 1
        lane.drop_dead(now_s)
        expired = {one for one in waiting if (at := rows[one].job.deadline_s) is not None and at <= now_s}
        for one in expired:
            future = rows[one].job.future
            assert future.cancelled() or isinstance(future.exception(), DeadlineExceededError)
        waiting -= {one for one in waiting if rows[one].job.is_dead}
        assert {id(row) for row in lane.rows()} == waiting
        assert bool(lane) == bool(waiting)


def test_a_job_all_of_whose_rows_were_taken_is_not_looked_at_any_more() -> None:
    lane = Lane(QueueLimits(token_budget=40, max_rows=4), cap=lambda rows: rows)
    (row,) = add(lane, [5], deadline_s=1.0)
    assert lane.pop() == [row]
    lane.drop_dead(2.0)
    assert not row.job.is_dead  # it runs: whoever asked keeps the deadline
