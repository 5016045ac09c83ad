"""Padding: on the right, masked by length, to a multiple."""

from __future__ import annotations

import numpy as np
import pytest

from samevec.runtime.collate import Features, collate
from samevec.runtime.rows import TokenRow


def test_rows_are_padded_on_the_right_and_masked() -> None:
    features = collate([TokenRow((7, 8, 9)), TokenRow((5,))], pad_token_id=2, pad_to_multiple=1)
    assert features.input_ids.tolist() == [[7, 8, 9], [5, 2, 2]]
    assert features.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert features.input_ids.dtype == features.attention_mask.dtype == np.int64
    assert features.shape == (2, 3)
    assert features.token_type_ids is None


def test_the_mask_comes_from_lengths_not_from_pad_ids() -> None:
    # The embedder's pad token is its end token: a mask made from ids would cut the very token that pooling reads.
    features = collate([TokenRow((2, 7, 2)), TokenRow((2,))], pad_token_id=2, pad_to_multiple=4)
    assert features.attention_mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize(("longest", "multiple", "padded"), [(1, 4, 4), (4, 4, 4), (5, 4, 8), (5, 1, 5), (129, 8, 136)])
def test_length_is_rounded_up_to_the_multiple(longest: int, multiple: int, padded: int) -> None:
    assert collate([TokenRow((1,) * longest)], pad_token_id=0, pad_to_multiple=multiple).shape == (1, padded)


def test_segment_ids_are_padded_with_zero() -> None:
    pair = TokenRow((1, 2, 3), (0, 1, 1))
    features = collate([pair, TokenRow((1,), (0,))], pad_token_id=9, pad_to_multiple=4)
    assert features.token_type_ids is not None
    assert features.token_type_ids.tolist() == [[0, 1, 1, 0], [0, 0, 0, 0]]


def test_the_feed_holds_what_the_graph_declares_and_nothing_else() -> None:
    features = collate([TokenRow((1, 2))], pad_token_id=0, pad_to_multiple=1)
    assert list(features.as_feed(["attention_mask", "input_ids"])) == ["attention_mask", "input_ids"]
    feed = features.as_feed(["input_ids", "token_type_ids"])
    assert feed["token_type_ids"].tolist() == [[0, 0]]
    with pytest.raises(KeyError):
        features.as_feed(["position_ids"])


def test_the_digest_depends_on_values_mask_and_shape() -> None:
    def features(ids: list[list[int]], mask: list[list[int]]) -> Features:
        return Features(np.array(ids, dtype=np.int64), np.array(mask, dtype=np.int64))

    variants = [
        features([[1, 2]], [[1, 1]]),
        features([[1, 3]], [[1, 1]]),
        features([[1, 2]], [[1, 0]]),
        features([[1], [2]], [[1], [1]]),
        Features(np.array([[1, 2]]), np.array([[1, 1]]), np.array([[0, 0]])),
    ]
    assert len({variant.digest for variant in variants}) == len(variants)
    assert variants[0].digest == features([[1, 2]], [[1, 1]]).digest
    assert variants[0].digest.startswith("sha256:")
