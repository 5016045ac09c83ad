"""The built-in cases are fixed, and the groupings cover them."""

from __future__ import annotations

import dataclasses

import pytest

from samevec.parity.cases import builtin_cases, groupings

# Another case set makes every reference and receipt out of date: change these only on purpose.
TEXTS_DIGEST = "sha256:cd2a20bbed9a1b1f8caad5d4b2a64bb0ef6531982b921cc62c1803e9ca14a3ff"
PAIRS_DIGEST = "sha256:e25e269c6d778ef8113b20aef55ed00ce16f2c9fc8fdaa551d566c4df0602e27"
PROMPTS = ("query", "document")


def test_the_case_sets_are_the_pinned_ones() -> None:
    assert builtin_cases("embed", prompts=PROMPTS).digest == TEXTS_DIGEST
    assert builtin_cases("rerank").digest == PAIRS_DIGEST


def test_the_digest_covers_what_decides_token_ids() -> None:
    cases = builtin_cases("embed", prompts=PROMPTS)
    first = cases.texts[0]
    for change in ({"text": "other"}, {"prompt": "query"}, {"max_tokens": 16}):
        texts = (dataclasses.replace(first, **change), *cases.texts[1:])
        assert dataclasses.replace(cases, texts=texts).digest != cases.digest
    retagged = (dataclasses.replace(first, tag="other"), *cases.texts[1:])
    assert dataclasses.replace(cases, texts=retagged).digest == cases.digest


def test_a_model_without_prompts_gets_no_prompt_cases() -> None:
    without = builtin_cases("embed")
    assert {case.prompt for case in without.texts} == {None}
    assert len(without) < len(builtin_cases("embed", prompts=PROMPTS))


def test_every_kind_of_text_is_there() -> None:
    texts = {case.text for case in builtin_cases("embed", prompts=PROMPTS).texts}
    assert {"", " ", "\n\t"} <= texts
    for part in ("\x00", "<|endoftext|>", "<|im_end|>", "[SEP]", "[CLS]", "\u0301", "\U0001f469", "https://", "\u202e"):
        assert any(part in text for text in texts), part
    for first, last in (("\u0590", "\u05ff"), ("\u0600", "\u06ff"), ("\u0e00", "\u0e7f"), ("\u4e00", "\u9fff")):
        assert any(first <= character <= last for text in texts for character in text)


def test_cases_fit_the_toy_models_byte_by_byte() -> None:
    for case in builtin_cases("embed", prompts=PROMPTS).texts:
        assert len(case.text.encode()) <= 1500
    for pair in builtin_cases("rerank").pairs:
        assert len((pair.query + pair.document).encode()) <= 1500


def test_equal_length_texts_differ_and_have_equal_words() -> None:
    cases = builtin_cases("embed").texts
    for tag in {case.tag for case in cases if case.tag.startswith("equal length")}:
        group = [case.text for case in cases if case.tag == tag]
        assert len(group) >= 3
        assert len(set(group)) == len(group)
        assert len({tuple(sorted(text.split(" "))) for text in group}) == 1
        assert len({text[0] for text in group}) == 1


def test_duplicates_are_there() -> None:
    texts = [case.text for case in builtin_cases("embed").texts if case.max_tokens is None]
    assert len(set(texts)) < len(texts)


LENGTHS = [3, 600, 5, 5, 1, 17, 17, 17, 40, 2, 300, 8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize("name", ["alone", "default", "batch_1", "batch_8", "shuffled"])
def test_whole_groupings_are_partitions(name: str) -> None:
    grouping = next(g for g in groupings(LENGTHS) if g.name == name)
    assert sorted(grouping.cases) == list(range(len(LENGTHS)))


def test_groupings_are_what_their_names_say() -> None:
    found = {grouping.name: grouping for grouping in groupings(LENGTHS)}
    assert next(iter(found)) == "alone"
    assert all(len(call) == 1 for call in found["alone"].calls)
    assert found["default"].calls == (tuple(range(len(LENGTHS))),)
    assert (found["default"].batch_size, found["default"].token_budget) == (None, None)
    assert (found["batch_1"].batch_size, found["batch_8"].batch_size) == (1, 8)
    assert [{LENGTHS[i] for i in call} for call in found["equal_lengths"].calls] == [{5}, {17}]
    assert [LENGTHS[i] for i in found["long_among_short"].calls[0]] == [1, 600, 3]
    assert found["shuffled"].cases != found["default"].cases
    assert max(len(call) for call in found["shuffled"].calls) == 13


def test_groupings_that_cannot_be_made_are_left_out() -> None:
    assert [grouping.name for grouping in groupings([1, 2, 3])] == [
        "alone",
        "default",
        "batch_1",
        "batch_8",
        "shuffled",
    ]


def test_groupings_are_the_same_every_time() -> None:
    assert groupings(LENGTHS) == groupings(LENGTHS)
