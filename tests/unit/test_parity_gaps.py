"""What a verdict says it did not measure."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from ranking_stand_ins import LOCK, REFERENCES, make_model

from samevec.parity.cases.builtin import CaseSet
from samevec.parity.coverage import profile_gaps, ranking_gaps
from samevec.parity.gate import run_gate
from samevec.parity.rankings.figures import Rankings
from samevec.parity.rankings.retrieval import builtin_fixture, fixture_cases
from samevec.runtime.providers.profiles import PROFILES, Profile
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from ranking_stand_ins import Model

EXACT = Profile(name="exact", provider=FakeSession.provider, graph_form="none", bit_identical_groupings=True)
FALLING_BACK = dataclasses.replace(EXACT, fallback="cpu")


def with_entry(task: str, **facts: Any) -> Model:
    model = make_model(task)
    return dataclasses.replace(model, entry=dataclasses.replace(model.entry, **facts))


def gaps(task: str, *, profile: Profile = EXACT) -> tuple[str, ...]:
    model = make_model(task)
    every = fixture_cases(builtin_fixture(), task, prompts=model.entry.prompts)
    few = CaseSet(task=every.task, texts=every.texts[:1], pairs=every.pairs[:1])
    return run_gate(
        model, REFERENCES[task], tolerance=LOCK.tolerance, profile=profile, case_set=few, repeats=1
    ).not_measured


def test_a_full_gate_says_what_no_case_of_it_reaches() -> None:
    found = gaps("embed")
    for words in (
        "inputs longer than ",
        "vector prefixes of other lengths than 256 (from 32 to 384 may be asked for)",
        "several calls at the same time",
        "rankings by vector prefixes: all 384 components were ranked",
        "rankings with other prompts: queries had the prompt 'query', documents had the prompt 'document'",
        "the model card's golden values: ",
    ):
        assert len([gap for gap in found if gap.startswith(words)]) == 1, (words, found)
    pairs = gaps("rerank")
    assert "rankings of more than 6 documents for a query" in pairs
    assert not any("prefix" in words or "prompt" in words for words in pairs)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ({"query": "Q: "}, "queries had the prompt 'query', documents had none"),
        ({"other": "O: "}, "queries had none, documents had none"),
        (MappingProxyType({"document": ""}), "queries had none, documents had the prompt 'document'"),
    ],
)
def test_the_prompts_that_were_ranked_are_named(prompts: Any, words: str) -> None:
    rankings = run_gate(
        make_model("embed"),
        REFERENCES["embed"],
        tolerance=LOCK.tolerance,
        profile=EXACT,
        case_set=CaseSet(task="embed", texts=fixture_cases(builtin_fixture(), "embed", prompts=("query",)).texts[:1]),
        repeats=1,
    ).rankings
    assert f"rankings with other prompts: {words}" in ranking_gaps(with_entry("embed", prompts=prompts), rankings)


def test_a_model_without_prompts_or_prefixes_has_no_such_gap() -> None:
    bare = with_entry("embed", prompts={}, matryoshka_min_dimensions=None)
    rankings = Rankings(
        task="embed", fixture_digest="", n_queries=1, n_items=1, top=1, not_measured=("rankings through SQLite",)
    )
    assert ranking_gaps(bare, rankings) == ("rankings through SQLite",)
    assert ranking_gaps(bare, None) == ("rankings over the retrieval fixture",)


def test_what_takes_over_is_told_to_have_a_gate_of_its_own() -> None:
    (words,) = profile_gaps(FALLING_BACK)
    assert words.startswith("the profile cpu, which takes over")
    assert words in gaps("rerank", profile=FALLING_BACK)
    assert profile_gaps(PROFILES["cpu"]) == ()
    assert profile_gaps(PROFILES["cuda"]) != ()
