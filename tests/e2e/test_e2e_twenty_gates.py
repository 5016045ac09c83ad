"""The gate says the same as often as it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e_tools import LOCK, TOYS, pass_twenty_quick_gates

from samevec.opening import open_candidate

if TYPE_CHECKING:
    from e2e_tools import ToyHome

pytestmark = pytest.mark.model


@pytest.mark.parametrize("name", TOYS)
def test_twenty_quick_gates_in_a_row_pass_with_the_same_answers(name: str, exported: ToyHome) -> None:
    pass_twenty_quick_gates(open_candidate(LOCK.model(name), profile="cpu", home=exported.path))
