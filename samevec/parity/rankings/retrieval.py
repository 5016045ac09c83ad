"""The retrieval fixture: 256 documents and 32 queries whose labels follow from how they are built.

Eight fields with four topics each. A topic is a subject, such as a ferry line; its query asks one thing about it.
Documents that answer the query have grade 2, others about the same subject grade 1; the same sentences about another
subject of the field are distractors, without a grade.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samevec.digest import digest_json
from samevec.parity.cases.builtin import CaseSet, PairCase, TextCase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["RetrievalFixture", "RetrievalQuery", "builtin_fixture", "fixture_cases"]

_SEED = 4
_PER_TOPIC = 8
#: Documents a reranker scores for each query.
_CANDIDATES = 6
_MOST_HITS = 3
#: One document in N is three sentences long, so that lengths differ as in a store.
_LONG_EVERY = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrievalQuery:
    """A query and the documents relevant to it."""

    text: str
    grades: tuple[tuple[int, int], ...]  # document number and grade (1 related, 2 answers it), ascending
    candidates: tuple[int, ...]  # documents that a reranker orders for it


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrievalFixture:
    """Documents and labelled queries."""

    documents: tuple[str, ...]
    queries: tuple[RetrievalQuery, ...]

    @property
    def digest(self) -> str:
        """``sha256:...`` of everything in it."""
        queries = [[query.text, query.grades, query.candidates] for query in self.queries]
        return digest_json({"documents": self.documents, "queries": queries})


@dataclass(frozen=True, slots=True)
class _Field:
    """Subjects with a query and others without; two sentences that answer it, then six that do not."""

    query: str
    subjects: tuple[str, ...]
    others: tuple[str, ...]
    sentences: tuple[str, ...]


_FIELDS = (
    _Field(
        "when does the first {s} leave",
        ("Lindow ferry", "Karsk night train", "harbour tram", "Ostrava airport bus"),
        ("Brenn cable car", "lake steamer", "valley postbus", "Tolm funicular"),
        (
            "The first {s} of the day leaves at {h}.{m}.",
            "On weekdays the {s} runs from {h}.{m}, and twice an hour after nine.",
            "Tickets for the {s} cost {n} crowns; children pay half.",
            "The {s} carried {n} thousand people in {y}.",
            "Bicycles may go on the {s} outside rush hour.",
            "A new brake was fitted to the {s} in {y}.",
            "The driver of the {s} sells coffee from a flask.",
            "Fog stopped the {s} for {n} hours last winter.",
        ),
    ),
    _Field(
        "how long does {s} have to bake",
        ("rye bread with caraway", "plum cake", "potato gratin", "an almond tart"),
        ("cheese souffle", "a quince pie", "flat onion bread", "honey biscuits"),
        (
            "Bake {s} for {n} minutes, until a needle comes out clean.",
            "In a hot oven, allow {s} {n} minutes and ten more to rest.",
            "For {s}, sift {n} grams of flour into a wide bowl.",
            "My aunt brought {s} to every wedding after {y}.",
            "Salt makes {s} taste of more than sugar.",
            "Frozen, {s} keeps for {n} weeks.",
            "A bakery in Ghent has sold {s} since {y}.",
            "Serve {s} cold, with sour cream.",
        ),
    ),
    _Field(
        "what warranty covers the {s}",
        ("Arvo dishwasher", "Belmont lawn mower", "Pica e-reader", "Norrland heat pump"),
        ("Tamis coffee mill", "Duro drill", "Hylla bookshelf", "Veld tent"),
        (
            "The {s} is guaranteed for {n} months from the day of delivery.",
            "Claims under the {s} warranty must reach us within {n} days.",
            "The {s} weighs {n} kilograms without its box.",
            "Press both buttons of the {s} for five seconds to reset it.",
            "The {s} won a design prize in {y}.",
            "Spare parts for the {s} are shipped from Rotterdam.",
            "The {s} is too loud for a small flat.",
            "We stopped making the blue {s} in {y}.",
        ),
    ),
    _Field(
        "why do {s} migrate",
        ("arctic terns", "grey whales", "monarch butterflies", "river eels"),
        ("barn swallows", "leatherback turtles", "wild geese", "red crabs"),
        (
            "Because food runs short in winter, {s} travel {n} hundred kilometres.",
            "It is to breed where nothing hunts them that {s} set out each year.",
            "Observers counted {n} thousand {s} in {y}.",
            "A tag weighing {n} milligrams follows {s} by satellite.",
            "Old sailors took {s} for a sign of land.",
            "The law has protected {s} since {y}.",
            "Nobody knows how {s} sleep on the way.",
            "Plastic was found in {n} of a hundred {s}.",
        ),
    ),
    _Field(
        "how to fix {s}",
        ("a segmentation fault", "a failing unit test", "an expired certificate", "a full disk"),
        ("a merge conflict", "a memory leak", "a broken symlink", "a port already in use"),
        (
            "To get rid of {s}, read the log first and undo the last change.",
            "We solved {s} by rolling back to release {n}.",
            "The build server reported {s} {n} times last night.",
            "Our oldest ticket about {s} is from {y}.",
            "Alerts for {s} go to the person on call.",
            "He blamed {s} on the new intern.",
            "The talk on {s} lasted {n} minutes.",
            "Chapter {n} of the handbook describes {s}.",
        ),
    ),
    _Field(
        "who painted the {s}",
        ("Winter Harbour triptych", "ceiling of Saint Odile", "portrait of the glassmaker", "Lisbon station mural"),
        ("altar of Veere", "Blue Orchard series", "town hall frieze", "girl with a heron"),
        (
            "The {s} is the work of Ines Calder, finished in {y}.",
            "Scholars attribute the {s} to a pupil of Marten Vos.",
            "The {s} was cleaned in {y} and is brighter now.",
            "Insurance for the {s} costs {n} thousand a year.",
            "Visitors may see the {s} on Sundays after {h}.",
            "Thieves cut the {s} from its frame in {y}.",
            "Damp has damaged the lower edge of the {s}.",
            "A copy of the {s} hangs in the canteen.",
        ),
    ),
    _Field(
        "treatment for {s}",
        ("hay fever", "a sprained ankle", "seasickness", "lead poisoning"),
        ("a wasp sting", "frostbite", "scurvy", "a slipped disc"),
        (
            "Against {s} doctors prescribe {n} milligrams twice a day.",
            "Rest and plenty of water are the usual cure for {s}.",
            "About {n} in a thousand adults get {s} each year.",
            "The word for {s} first appears in a letter of {y}.",
            "Children rarely have {s} before the age of five.",
            "She missed {n} days of work through {s}.",
            "A famous novel of {y} begins with {s}.",
            "Insurers paid for {n} cases of {s}.",
        ),
    ),
    _Field(
        "how deep is {s}",
        ("Lake Orsa", "the Marn trench", "Saint Brigid's well", "the Keld fjord"),
        ("the Ruhn quarry", "Port Amel basin", "the Sable cave", "Crater Lake Ino"),
        (
            "At its deepest point {s} measures {n} metres.",
            "Divers touched the bottom of {s} after {n} metres.",
            "The water of {s} is {n} degrees in August.",
            "A bridge over {s} was opened in {y}.",
            "Pike from {s} are sold at the market.",
            "According to legend a bell lies in {s}.",
            "Swimming in {s} is forbidden after dark.",
            "The first map of {s} was drawn in {y}.",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class _Document:
    topic: int
    grade: int
    text: str


def _topics() -> Iterator[tuple[int, _Field, str, str]]:
    """Yield number, field, subject asked for and subject of the distractors of every topic."""
    for i in range(4 * len(_FIELDS)):
        field = _FIELDS[i // 4]
        yield i, field, field.subjects[i % 4], field.others[i % 4]


def _relevant(topic: int) -> int:
    """Return the number of a topic's eight documents that are relevant: each of 1 to 8 equally often."""
    return 1 + (3 * topic + topic // 8) % _PER_TOPIC


def _documents(stream: random.Random) -> list[_Document]:
    found: list[_Document] = []
    for topic, field, subject, other in _topics():
        n_relevant = _relevant(topic)
        for i in range(_PER_TOPIC):
            about, number = (subject, i) if i < n_relevant else (other, i - n_relevant)
            numbers = [number]
            if len(found) % _LONG_EVERY == _LONG_EVERY - 1:  # two more sentences that answer nothing
                numbers += [2 + (number + 1) % 6, 2 + (number + 3) % 6]
            grade = (2 if number < 2 else 1) if i < n_relevant else 0
            sentences = [_sentence(field.sentences[j], about, stream) for j in dict.fromkeys(numbers)]
            found.append(_Document(topic, grade, " ".join(sentences)))
    return found


def _sentence(template: str, subject: str, stream: random.Random) -> str:
    # Only random() is promised to give the same in every Python.
    values = {"h": 5, "m": 10 + int(stream.random() * 50), "n": 2 + int(stream.random() * 97)}
    year, hour = 1870 + int(stream.random() * 150), 5 + int(stream.random() * 4)
    text = template.format_map(values | {"s": subject, "y": year, "h": hour})
    return text[0].upper() + text[1:]


def _candidates(topic: int, documents: list[_Document]) -> tuple[int, ...]:
    """Choose a reranker's candidates: up to three hits, then distractors of the topic, then of the field."""
    own = [i for i, document in enumerate(documents) if document.topic == topic]
    hits = sorted((i for i in own if documents[i].grade), key=lambda i: (-documents[i].grade, i))[:_MOST_HITS]
    same_field = [i for i, document in enumerate(documents) if document.topic == topic // 4 * 4 + (topic + 1) % 4]
    wrong = [*(i for i in own if not documents[i].grade), *same_field]
    return tuple(sorted([*hits, *wrong[: _CANDIDATES - len(hits)]]))


@functools.lru_cache(maxsize=1)
def builtin_fixture() -> RetrievalFixture:
    """Return the built-in fixture: 256 documents, 32 queries with 1 to 8 relevant documents each."""
    stream = random.Random(_SEED)  # noqa: S311
    made = _documents(stream)
    keys = [stream.random() for _ in made]
    documents = [made[i] for i in sorted(range(len(made)), key=keys.__getitem__)]  # numbers say nothing of topics
    queries = []
    for topic, field, subject, _ in _topics():
        own = [(i, document.grade) for i, document in enumerate(documents) if document.topic == topic]
        queries.append(
            RetrievalQuery(
                text=field.query.format(s=subject),
                grades=tuple((i, grade) for i, grade in own if grade),
                candidates=_candidates(topic, documents),
            )
        )
    return RetrievalFixture(documents=tuple(document.text for document in documents), queries=tuple(queries))


def fixture_cases(fixture: RetrievalFixture, task: str, *, prompts: Collection[str] = ()) -> CaseSet:
    """Return a fixture as cases: every query, then every document, or each query's candidates for task ``"rerank"``.

    `prompts` has the names of the model's prompts; ``query`` and ``document`` are used if among them.
    """
    if task == "rerank":
        pairs = [
            PairCase(query=query.text, document=fixture.documents[i], tag="retrieval")
            for query in fixture.queries
            for i in query.candidates
        ]
        return CaseSet(task="rerank", pairs=tuple(pairs))
    asked: dict[str, Any] = {name: name if name in prompts else None for name in ("query", "document")}
    texts = [TextCase(text=query.text, prompt=asked["query"], tag="retrieval query") for query in fixture.queries]
    texts += [TextCase(text=text, prompt=asked["document"], tag="retrieval document") for text in fixture.documents]
    return CaseSet(task="embed", texts=tuple(texts))
