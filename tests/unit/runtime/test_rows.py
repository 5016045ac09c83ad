"""Token rows: what is equal to the model is equal as a key."""

from __future__ import annotations

from samevec.runtime.rows import TokenRow


def test_length_counts_every_token() -> None:
    assert TokenRow((5, 6, 2)).n_tokens == 3


def test_key_ignores_what_the_model_does_not_see() -> None:
    assert TokenRow((5, 6), cut_tokens=3).key == TokenRow((5, 6)).key
    assert TokenRow((5, 6), (0, 1)).key != TokenRow((5, 6), (0, 0)).key
    assert TokenRow((5, 6)).key != TokenRow((6, 5)).key
