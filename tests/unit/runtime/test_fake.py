"""The shipped fake session keeps the promise real sessions are held to."""

from __future__ import annotations

import numpy as np
from makers import rows

from samevec.runtime.collate import collate
from samevec.runtime.sessions.fake import FakeSession


def test_a_rows_bits_do_not_depend_on_its_neighbours() -> None:
    session = FakeSession(width=5)
    together = session.run(collate(rows([3, 9, 1]), pad_token_id=0, pad_to_multiple=4))
    for i, row in enumerate(rows([3, 9, 1])):
        alone = session.run(collate([row], pad_token_id=7, pad_to_multiple=1))
        assert alone.tobytes() == together[i].tobytes() == session.row(list(row.ids)).tobytes()
    assert session.runs == [(3, 12), (1, 3), (1, 9), (1, 1)]


def test_rows_are_finite_nonzero_float32_and_differ() -> None:
    session = FakeSession(width=4)
    raw = session.run(collate(rows([2] * 50), pad_token_id=0, pad_to_multiple=1))
    assert raw.dtype == np.float32
    assert raw.shape == (50, 4)
    assert np.isfinite(raw).all()
    assert raw.all()
    assert len(np.unique(raw, axis=0)) == 50


def test_it_names_a_provider() -> None:
    session = FakeSession()
    assert (session.provider, session.provider_options) == ("FakeExecutionProvider", {})
