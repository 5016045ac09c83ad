"""The built-in cases are fixed, and the groupings cover them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from samevec.lock import load_lock
from samevec.parity.cases.builtin import CaseSet, TextCase, builtin_cases, quick_positions
from samevec.parity.cases.groupings import QUICK_GROUPINGS, groupings
from samevec.parity.cases.texts import LENGTH_EDGES
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from samevec.runtime.rows import TokenRow

# Another case set makes every reference and receipt out of date: change these only on purpose.
TEXTS_DIGEST = "sha256:682f749dedf022292759c2e946416705f4eccb827458dfda65f0ddb9180f95d2"
PAIRS_DIGEST = "sha256:a8b63998387cd90dc4f4dcb6b928ab77b1aee1033e7ae9b6fa8dd01e55554f54"
QUICK_TEXTS_DIGEST = "sha256:e71925d26a4b22aaddbc32238fc1412e8c054d869664ce1640e708811269bcc1"
QUICK_PAIRS_DIGEST = "sha256:32865a4c738e4969b4f411cd61a7a92bef9e4e428b10afefa305262d1be32cbc"
PROMPTS = ("query", "document")
SNAPSHOTS = Path(os.environ.get("SAMEVEC_SNAPSHOTS") or Path(__file__).resolve().parents[3] / "shared" / "models")
REAL = {"embed": "qwen3-embedding-0.6b", "rerank": "gte-reranker-modernbert-base"}


def test_the_case_sets_are_the_pinned_ones() -> None:
    texts, pairs = builtin_cases("embed", prompts=PROMPTS), builtin_cases("rerank")
    assert (len(texts), len(pairs)) == (301, 126)
    assert texts.digest == TEXTS_DIGEST
    assert pairs.digest == PAIRS_DIGEST


def test_the_quick_subsets_are_the_pinned_ones_and_lie_in_the_full_sets() -> None:
    for task, digest in (("embed", QUICK_TEXTS_DIGEST), ("rerank", QUICK_PAIRS_DIGEST)):
        full = builtin_cases(task, prompts=PROMPTS)
        quick = builtin_cases(task, prompts=PROMPTS, quick=True)
        assert quick.digest == digest
        assert quick.cases == tuple(full.cases[i] for i in quick_positions(full))
        assert quick_positions(quick) == tuple(range(len(quick)))


def test_the_quick_subsets_hold_what_the_negative_controls_need() -> None:
    texts = builtin_cases("embed", prompts=PROMPTS, quick=True).texts
    pairs = builtin_cases("rerank", quick=True).pairs
    for cases, kinds in (
        (
            texts,
            {
                "blank",
                "marker-like",
                "pad id",
                "equal length 8",
                "cut to 16 tokens",
                "query prompt",
                "cut inside the prompt",
            },
        ),
        (texts, {"chinese", "arabic", "devanagari", "control", "letters", "prose"}),
        (
            pairs,
            {
                "blank",
                "marker-like",
                "pad id",
                "equal length",
                "cut to 32 tokens",
                "script",
                "control",
                "equal length 160",
            },
        ),
    ):
        assert kinds <= {case.tag for case in cases}
    assert sum(case.tag == "equal length 8" for case in texts) >= 3
    assert {case.max_tokens for case in texts} == {None, 16}
    assert max(len(case.text.split(" ")) for case in texts) == 90
    assert max(len(pair.document.split(" ")) for pair in pairs) == 156


def test_a_set_that_marks_nothing_is_quick_as_a_whole() -> None:
    cases = CaseSet(task="embed", texts=(TextCase(text="a", tag=""), TextCase(text="b", tag="")))
    assert quick_positions(cases) == (0, 1)


def test_the_digest_covers_what_decides_token_ids() -> None:
    cases = builtin_cases("embed", prompts=PROMPTS)
    first = cases.texts[0]
    for change in ({"text": "other"}, {"prompt": "query"}, {"max_tokens": 16}):
        texts = (dataclasses.replace(first, **change), *cases.texts[1:])
        assert dataclasses.replace(cases, texts=texts).digest != cases.digest
    for same in (dataclasses.replace(first, tag="other"), dataclasses.replace(first, quick=not first.quick)):
        assert dataclasses.replace(cases, texts=(same, *cases.texts[1:])).digest == cases.digest


def test_a_model_without_prompts_gets_no_prompt_cases() -> None:
    without = builtin_cases("embed")
    assert {case.prompt for case in without.texts} == {None}
    assert len(without) < len(builtin_cases("embed", prompts=PROMPTS))


def test_every_kind_of_text_is_there() -> None:
    texts = {case.text for case in builtin_cases("embed", prompts=PROMPTS).texts}
    assert {"", " ", "\n\t", "\x00"} <= texts
    for part in ("\x00", "<|endoftext|>", "<|im_end|>", "[SEP]", "[CLS]", "\u0301", "\U0001f469", "https://", "\u202e"):
        assert any(part in text for text in texts), part
    for first, last in (("\u0590", "\u05ff"), ("\u0600", "\u06ff"), ("\u0e00", "\u0e7f"), ("\u4e00", "\u9fff")):
        assert any(first <= character <= last for text in texts for character in text)
    scripts = {name.split(" ")[0] for text in texts for name in _script_names(text)}
    assert len(scripts) >= 30


def _script_names(text: str) -> set[str]:
    import unicodedata  # noqa: PLC0415

    return {unicodedata.name(c, "NONE NONE") for c in text if c.isalpha()}


def test_only_the_longest_case_is_cut_by_the_toy_models_limit() -> None:
    limit = load_lock("toy").models[0].max_tokens
    texts = [case for case in builtin_cases("embed", prompts=PROMPTS).texts if len(case.text.encode()) >= limit]
    pairs = [case for case in builtin_cases("rerank").pairs if len((case.query + case.document).encode()) >= limit - 3]
    assert [case.tag for case in texts] == [case.tag for case in pairs] == ["longest"]


def test_equal_length_texts_differ_and_have_equal_words() -> None:
    cases = builtin_cases("embed").texts
    tags = {case.tag for case in cases if case.tag.startswith("equal length")}
    assert len(tags) >= 3
    for tag in tags - {"equal length 2"}:
        group = [case.text for case in cases if case.tag == tag]
        assert len(group) >= 3
        assert len(set(group)) == len(group)
        assert len({tuple(sorted(text.split(" "))) for text in group}) == 1
        assert len({text[0] for text in group}) == 1


def test_duplicates_are_there() -> None:
    texts = [case.text for case in builtin_cases("embed").texts if case.max_tokens is None]
    assert len(set(texts)) < len(texts)
    pairs = [(case.query, case.document) for case in builtin_cases("rerank").pairs]
    assert len(set(pairs)) < len(pairs)


def real_rows(task: str) -> list[TokenRow]:
    """Return the built-in cases as the real tokenizer gives them."""
    entry = load_lock(None).model(REAL[task])
    path = SNAPSHOTS / entry.name / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"no {path} ($SAMEVEC_SNAPSHOTS, else ../shared/models beside the checkout)")
    tokenizer = Tokenizer.from_file(path, max_tokens=entry.max_tokens)
    cases = builtin_cases(task, prompts=entry.prompts)
    if task == "rerank":
        return [tokenizer.encode_pairs([(c.query, c.document)], max_tokens=c.max_tokens)[0] for c in cases.pairs]
    prompts = [entry.prompts.get(case.prompt or "", "") for case in cases.texts]
    return [
        tokenizer.encode_texts([case.text], prompt=prompt, max_tokens=case.max_tokens)[0]
        for case, prompt in zip(cases.texts, prompts, strict=True)
    ]


# Measured with the real tokenizers; more tokens would take the gate beyond ten minutes on two cores.
@pytest.mark.parametrize(
    ("task", "n_tokens", "longest", "hits"), [("embed", 6091, 1031, 16), ("rerank", 5919, 1034, 18)]
)
def test_real_lengths_hit_every_edge(task: str, n_tokens: int, longest: int, hits: int) -> None:
    lengths = [row.n_tokens for row in real_rows(task)]
    assert set(LENGTH_EDGES) <= set(lengths)
    assert len(LENGTH_EDGES) == 15
    assert sum(length in LENGTH_EDGES for length in lengths) == hits
    assert (sum(lengths), max(lengths)) == (n_tokens, longest)
    assert min(lengths) == (1 if task == "embed" else 3)
    for tag in ("equal length 5", "equal length 16") if task == "embed" else ("equal length", "equal length 160"):
        cases = builtin_cases(task, prompts=PROMPTS).cases
        group = [length for case, length in zip(cases, lengths, strict=True) if case.tag == tag]
        assert len(group) >= 2
        assert len(set(group)) == 1


LENGTHS = [3, 600, 5, 5, 1, 17, 17, 17, 40, 2, 300, 8, 9, 10, 11, 12, 13, 514, 515, 516]


def found(lengths: list[int], **options: object) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {grouping.name: grouping.calls for grouping in groupings(lengths, **options)}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["alone", "default"])
def test_whole_groupings_run_every_case_once(name: str) -> None:
    calls = found(LENGTHS)[name]
    assert sorted(i for call in calls for i in call) == list(range(len(LENGTHS)))


def test_groupings_are_what_their_names_say() -> None:
    by_name = {grouping.name: grouping for grouping in groupings(LENGTHS)}
    assert next(iter(by_name)) == "alone"
    assert all(len(call) == 1 for call in by_name["alone"].calls)
    assert (by_name["default"].batch_size, by_name["default"].token_budget) == (None, None)
    for size in (1, 8, 32):
        assert by_name[f"batch_{size}"].batch_size == size
    for budget in (512, 1024, 4096):
        assert by_name[f"budget_{budget}"].token_budget == budget
    assert [{LENGTHS[i] for i in call} for call in by_name["equal_lengths"].calls] == [{5}, {17}]
    assert [LENGTHS[i] for i in by_name["long_among_short"].calls[0]] == [1, 600, 3]
    assert max(len(call) for call in by_name["shuffled"].calls) <= 13
    assert by_name["batch_1"].like == ("alone",)
    assert {name for name, grouping in by_name.items() if grouping.like} == {"batch_1"}


def test_pairs_are_run_in_64_too() -> None:
    assert set(found(LENGTHS, task="rerank")) - set(found(LENGTHS)) == {"batch_64"}


def test_budgets_share_the_cases_and_keep_one_row_that_is_longer() -> None:
    lengths = [5] * 30 + [516, 515, 514]
    calls = found(lengths)
    budgets = [set(calls[f"budget_{n}"][0]) for n in (512, 1024, 4096)]
    assert set.union(*budgets) == {*range(30), 30, 31}
    assert sum(len(one) for one in budgets) == 32  # no case twice; one long row beyond what fills runs
    lengths = [516, 5, 5, 515, 5, 5]
    assert found(lengths)["budget_512"] == ((3,),)


def test_long_cases_run_where_they_show_something() -> None:
    lengths = [1031, *[5] * 40, 300]
    with_longest = {name for name, calls in found(lengths).items() if any(0 in call for call in calls)}
    assert with_longest == {"alone", "default", "long_among_short"}
    assert not any(41 in call for call in found(lengths)["batch_32"])


def test_a_quick_gate_runs_a_few_groupings() -> None:
    assert tuple(found(LENGTHS, quick=True)) == QUICK_GROUPINGS
    assert set(QUICK_GROUPINGS) <= set(found(LENGTHS))


def test_groupings_that_cannot_be_made_are_left_out() -> None:
    names = set(found([1, 2, 3]))
    assert {"alone", "default", "batch_1", "batch_8", "shuffled"} <= names
    assert {"equal_lengths", "long_among_short"}.isdisjoint(names)
    assert set(found([600])) == {"alone", "default"}


def test_groupings_are_the_same_every_time() -> None:
    assert groupings(LENGTHS) == groupings(LENGTHS)
