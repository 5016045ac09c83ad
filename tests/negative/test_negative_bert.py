"""Wrong pooling inside a BERT embedder's graph, each refused by the cell that its test names.

Numbers after ``by=`` as in ``test_negative_graphs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from negative_bert import export_pooled, first_token, mean_of_all_columns
from negative_tools import graph_session, require_agreed, require_refused

if TYPE_CHECKING:
    from pathlib import Path

    from negative_tools import Toy

pytest_plugins = ("negative_fixtures",)
pytestmark = pytest.mark.model


@pytest.mark.parametrize("pad_to_multiple", [1, 4])
def test_the_mean_of_the_real_tokens_passes(pad_to_multiple: int, bert: Toy) -> None:
    verdict = bert.judge(bert.model(pad_to_multiple=pad_to_multiple))
    assert verdict.failures == ()


def test_first_token_instead_of_the_mean(bert: Toy, tmp_path: Path) -> None:
    verdict = bert.judge(bert.model(graph_session(export_pooled(bert, first_token, tmp_path))))
    require_refused(verdict, "raw/alone", "normalised/alone", "raw/long_among_short", by=400)


def test_mean_over_padding_too(bert: Toy, tmp_path: Path) -> None:
    """With the multiple of 4 a lone text is padded already."""
    verdict = bert.judge(bert.model(graph_session(export_pooled(bert, mean_of_all_columns, tmp_path))))
    require_refused(verdict, "raw/alone", "normalised/alone", "raw/long_among_short", by=400)


def test_mean_over_padding_too_where_nothing_is_padded_alone(bert: Toy, tmp_path: Path) -> None:
    """Without the multiple only company can tell."""
    session = graph_session(export_pooled(bert, mean_of_all_columns, tmp_path))
    verdict = bert.judge(bert.model(session, pad_to_multiple=1))
    require_agreed(verdict, "raw/alone", "normalised/alone", "raw/equal_lengths")
    require_refused(verdict, "raw/batch_8", "normalised/batch_8", "raw/long_among_short", by=400)
