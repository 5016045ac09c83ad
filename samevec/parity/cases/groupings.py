"""In which company the cases run: lengths in, groupings out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samevec.parity.cases.texts import shuffle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["QUICK_GROUPINGS", "Grouping", "groupings"]

#: What a quick gate runs: unpadded, as served, strongly padded, padded by nothing, and mostly padding.
QUICK_GROUPINGS = ("alone", "default", "batch_8", "equal_lengths", "long_among_short")

#: Longer cases run in `alone`, `default` and `long_among_short` only: beside them an engine's token budget of 4,096
#: fills up with padding, and the gate has ten minutes.
_MOST_TOKENS = 520
#: For the same reason those that fill runs up to the engine's own limits, 32 texts or 64 pairs and 4,096 tokens, are
#: given shorter ones.
_MOST_TOKENS_FILLED = 260
#: Row limits asked for, beside 1.
_BATCH_SIZES = {"embed": (8, 32), "rerank": (8, 32, 64)}
_TOKEN_BUDGETS = {512: _MOST_TOKENS, 1024: _MOST_TOKENS, 4096: _MOST_TOKENS_FILLED}
_SHUFFLED_BUDGET = 512
_SHUFFLED_ROWS = 13
_SHUFFLED_SHARE = 3
_SINGLE_ROW_SHARE = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouping:
    """A way of running cases together.

    Attributes
    ----------
    name : str
    calls : tuple of tuple of int
        Case numbers of each call, in the order in which they are handed over.
    batch_size, token_budget : int or None
        As a caller would give them; None leaves the model's own.
    like : tuple of str
        Other groupings that may run the very same microbatches without either being pointless.
    """

    name: str
    calls: tuple[tuple[int, ...], ...]
    batch_size: int | None = None
    token_budget: int | None = None
    like: tuple[str, ...] = ()

    @property
    def cases(self) -> tuple[int, ...]:
        """Every case number it runs, in order of the calls."""
        return tuple(case for call in self.calls for case in call)


def groupings(lengths: Sequence[int], *, task: str = "embed", quick: bool = False) -> tuple[Grouping, ...]:
    """Return the groupings in which rows of these lengths are compared.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each case.
    task : str
        Decides the batch sizes: 1, 8, 32, and 64 too for ``"rerank"``.
    quick : bool
        Only those of :data:`QUICK_GROUPINGS`.

    Returns
    -------
    tuple of Grouping
        ``alone`` first: the others are compared with it bit by bit.

    Notes
    -----
    ``alone`` and ``default`` run every case, ``long_among_short`` the longest between two of the shortest: nearly all
    is padding. The others run cases of up to 520 tokens, and of those what they can show something new with, within
    ten minutes for a full-size pair; each record says how many:

    - ``batch_1`` every ninth: its runs are those of ``alone``, what it shows is that the size is honoured.
    - ``batch_8``, ``batch_32``, ``batch_64`` those of up to 260 tokens.
    - ``budget_512``, ``budget_1024``, ``budget_4096`` every third, each another third, the last again up to 260. A
      row longer than the budget runs alone whatever the budget: the shortest such case is kept, which shows just that.
    - ``shuffled`` every third, in calls of 13, so that each is in other company than in one sorted call.
    - ``equal_lengths`` those that share their length with another: nothing is padded.
    """
    every = tuple(range(len(lengths)))
    usual = tuple(i for i in every if lengths[i] <= _MOST_TOKENS)
    short = tuple(i for i in every if lengths[i] <= _MOST_TOKENS_FILLED)
    found = [
        Grouping(name="alone", calls=tuple((i,) for i in every)),
        Grouping(name="default", calls=(every,)),
        Grouping(name="batch_1", calls=_one_call(usual[::_SINGLE_ROW_SHARE]), batch_size=1, like=("alone",)),
        *(Grouping(name=f"batch_{size}", calls=_one_call(short), batch_size=size) for size in _BATCH_SIZES[task]),
        *(
            Grouping(
                name=f"budget_{budget}",
                calls=_one_call(
                    _within(lengths, [i for i in usual[third :: len(_TOKEN_BUDGETS)] if lengths[i] <= most], budget)
                ),
                token_budget=budget,
            )
            for third, (budget, most) in enumerate(_TOKEN_BUDGETS.items())
        ),
        _shuffled(lengths, usual),
    ]
    equal = tuple(group for group in _by_length(lengths, usual) if len(group) > 1)
    if equal:
        found.append(Grouping(name="equal_lengths", calls=equal))
    if len(every) > 4:
        by_length = sorted(every, key=lambda i: lengths[i])
        call = (by_length[0], by_length[-1], by_length[2])
        budget = 3 * (lengths[by_length[-1]] + 16)  # room for all three in one run, whatever the padding multiple
        found.append(Grouping(name="long_among_short", calls=(call,), batch_size=3, token_budget=budget))
    return tuple(one for one in found if one.calls and (not quick or one.name in QUICK_GROUPINGS))


def _one_call(cases: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    call = tuple(cases)
    return (call,) if call else ()


def _shuffled(lengths: Sequence[int], usual: Sequence[int]) -> Grouping:
    order = shuffle(_within(lengths, usual[::_SHUFFLED_SHARE], _SHUFFLED_BUDGET), seed=20)
    calls = tuple(tuple(order[i : i + _SHUFFLED_ROWS]) for i in range(0, len(order), _SHUFFLED_ROWS))
    return Grouping(name="shuffled", calls=calls, token_budget=_SHUFFLED_BUDGET)


def _within(lengths: Sequence[int], cases: Sequence[int], token_budget: int) -> tuple[int, ...]:
    """Return those of the cases that fit a budget, and the shortest of those that do not."""
    longer = [i for i in cases if lengths[i] > token_budget]
    kept = min(longer, key=lambda i: (lengths[i], i), default=None)
    return tuple(i for i in cases if lengths[i] <= token_budget or i == kept)


def _by_length(lengths: Sequence[int], cases: Sequence[int]) -> list[tuple[int, ...]]:
    groups: dict[int, list[int]] = {}
    for i in cases:
        groups.setdefault(lengths[i], []).append(i)
    return [tuple(group) for _, group in sorted(groups.items())]
