"""The retrieval fixture: fixed by digest, and labelled as it says."""

from __future__ import annotations

from collections import Counter

import pytest

from samevec.parity.rankings.retrieval import builtin_fixture, fixture_cases

FIXTURE = builtin_fixture()


def test_the_fixture_is_pinned() -> None:
    # References hold this digest: change it only together with a reason for every user to export again.
    assert FIXTURE.digest == "sha256:182a4d542659c29cea54145a4a6c5093c42ba9495083c35a802d823b55a96e1d"
    assert builtin_fixture.__wrapped__() == FIXTURE


def test_it_has_256_documents_and_32_queries() -> None:
    assert len(set(FIXTURE.documents)) == len(FIXTURE.documents) == 256
    assert len({query.text for query in FIXTURE.queries}) == len(FIXTURE.queries) == 32


def test_documents_are_short_and_a_few_are_long() -> None:
    words = [len(text.split()) for text in FIXTURE.documents]
    assert sum(words) < 3500  # the full-shape embedder computes some 350 tokens a second
    assert 4 <= min(words) < max(words) <= 45
    assert 5 <= sum(n > 18 for n in words) <= 30


def test_every_query_has_one_to_eight_relevant_documents_and_one_that_answers() -> None:
    assert Counter(len(query.grades) for query in FIXTURE.queries) == dict.fromkeys(range(1, 9), 4)
    for query in FIXTURE.queries:
        assert 1 <= sum(grade == 2 for _, grade in query.grades) <= 2
        assert all(grade in (1, 2) for _, grade in query.grades)


def test_relevant_documents_name_the_querys_subject_and_no_others_do() -> None:
    lowered = [text.lower() for text in FIXTURE.documents]
    for query in FIXTURE.queries:
        relevant = {i for i, _ in query.grades}
        shared = [run for run in runs_of(query.text) if all(run in lowered[i] for i in relevant)]
        subject = max(shared, key=len)
        assert {i for i, text in enumerate(lowered) if subject in text} == relevant, query.text


def runs_of(text: str) -> list[str]:
    words = text.lower().split()
    return [" ".join(words[a:b]) for a in range(len(words)) for b in range(a + 1, len(words) + 1)]


def test_a_reranker_orders_hits_and_distractors() -> None:
    for query in FIXTURE.queries:
        grades = dict(query.grades)
        hits = [i for i in query.candidates if i in grades]
        assert len(set(query.candidates)) == 6
        assert 1 <= len(hits) <= 3
        assert max(grades[i] for i in hits) == 2
    places = Counter(
        min(query.candidates.index(i) for i, _ in query.grades if i in query.candidates) for query in FIXTURE.queries
    )
    assert len(places) > 2  # the first hit is not always in the same place


@pytest.mark.parametrize("prompts", [(), ("query",), ("query", "document")])
def test_cases_are_queries_then_documents_with_the_prompts_there_are(prompts: tuple[str, ...]) -> None:
    cases = fixture_cases(FIXTURE, "embed", prompts=prompts)
    assert [case.text for case in cases.texts] == [*(query.text for query in FIXTURE.queries), *FIXTURE.documents]
    assert {case.prompt for case in cases.texts[:32]} == {"query" if "query" in prompts else None}
    assert {case.prompt for case in cases.texts[32:]} == {"document" if "document" in prompts else None}


def test_pairs_are_each_query_with_its_candidates() -> None:
    pairs = fixture_cases(FIXTURE, "rerank").pairs
    assert len(pairs) == 32 * 6
    for i, pair in enumerate(pairs):
        query = FIXTURE.queries[i // 6]
        assert (pair.query, pair.document) == (query.text, FIXTURE.documents[query.candidates[i % 6]])
