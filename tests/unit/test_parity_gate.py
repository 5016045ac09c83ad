"""The gate, with fakes: it passes what is equal and refuses each way of being wrong, naming the cell."""

from __future__ import annotations

import dataclasses
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from rich.console import Console
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers, processors

from samevec.errors import ReferenceMissingError, SessionRunError
from samevec.lock import Golden, GoldenCosines, GoldenPair, GoldenTokens, load_lock
from samevec.parity.baseline import run_baseline
from samevec.parity.cases import CaseSet, TextCase, builtin_cases, quick_positions
from samevec.parity.driver import driver_digest
from samevec.parity.gate import run_gate, tokenize_cases
from samevec.parity.golden import COSINE_ALLOWANCE, LOGIT_ALLOWANCE, golden_cells, is_published
from samevec.parity.groupings import QUICK_GROUPINGS
from samevec.parity.receipt import Binding, gate_state, write_receipt
from samevec.parity.reference_file import CapturedRow, Reference
from samevec.parity.table import plain_lines, verdict_table
from samevec.parity.verdict import Cell
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.fake import FakeSession
from samevec.runtime.profiles import Profile
from samevec.runtime.reranker import Reranker
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.parity.verdict import Verdict
    from samevec.runtime.collate import Features
    from samevec.runtime.engine import RunRecorder
    from samevec.runtime.rows import TokenRow
    from samevec.runtime.session import Session

    Model = Embedder | Reranker
    Wrong = Callable[[NDArray[np.float32], Features], NDArray[np.float32]]

WIDTH = 384
LOCK = load_lock("toy")
EXACT = Profile(name="exact", provider=FakeSession.provider, graph_form="none", bit_identical_groupings=True)
LOOSE = dataclasses.replace(EXACT, name="loose", bit_identical_groupings=False)


class WrongSession(FakeSession):
    """A FakeSession whose output is changed by a function of output and features."""

    def __init__(self, width: int, wrong: Wrong) -> None:
        super().__init__(width)
        self._wrong = wrong

    def run(self, features: Features) -> NDArray[np.float32]:
        return self._wrong(super().run(features), features)


def raw_tokenizer(*, end: bool = True) -> RawTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)} | {"<end>": 256, "<sep>": 257}
    tokenizer = RawTokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    single = "$A <end>" if end else "<sep> $A"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair="<sep> $A <sep> $B <sep>", special_tokens=[("<end>", 256), ("<sep>", 257)]
    )
    return tokenizer


def make_model(task: str, session: Session | None = None, *, end: bool = True) -> Model:
    entry = next(entry for entry in LOCK.models if entry.task == task)
    width = WIDTH if task == "embed" else 1
    engine = Engine(session=session or FakeSession(width), width=width, max_rows=32 if task == "embed" else 64)
    kind = Embedder if task == "embed" else Reranker
    return kind(entry=entry, tokenizer=Tokenizer(raw_tokenizer(end=end), 2048), engine=engine)


def make_reference(task: str, case_set: CaseSet | None = None) -> Reference:
    """Return what a FakeSession gives, as the reference."""
    model = make_model(task)
    cases = case_set or builtin_cases(task, prompts=model.entry.prompts)
    session = FakeSession(WIDTH if task == "embed" else 1)
    rows = []
    for row in tokenize_cases(model, cases):
        raw = session.row(list(row.ids))[None]
        rows.append(CapturedRow(row.ids, raw[0], np.atleast_1d(model.finish(raw)[0])))
    return Reference.from_rows(
        rows, model=model.name, case_set=cases, lock_entry_digest=model.entry.digest, prompts={}, toolchain={}
    )


REFERENCES = {task: make_reference(task) for task in ("embed", "rerank")}


def gate(task: str, wrong: Wrong | None = None, *, profile: Profile = EXACT, **options: Any) -> Verdict:
    width = WIDTH if task == "embed" else 1
    session = FakeSession(width) if wrong is None else WrongSession(width, wrong)
    model = make_model(task, session)
    return run_gate(model, REFERENCES[task], tolerance=LOCK.tolerance, profile=profile, **options)


@pytest.mark.parametrize(
    ("task", "levels"),
    [("embed", {"ids", "raw", "normalised", "prefix_256", "truncated_256"}), ("rerank", {"ids", "logits", "scores"})],
)
def test_an_equal_candidate_passes(task: str, levels: set[str]) -> None:
    verdict = gate(task)
    assert verdict.failures == ()
    assert verdict.passed
    assert {cell.level for cell in verdict.cells} == levels
    sizes = ["batch_1", "batch_8", "batch_32"] + (["batch_64"] if task == "rerank" else [])
    budgets = ["budget_512", "budget_1024", "budget_4096"]
    names = ["alone", "default", *sizes, *budgets, "shuffled", "equal_lengths", "long_among_short"]
    assert [run.name for run in verdict.runs] == names
    assert {run.same_as for run in verdict.runs} == {None}
    values = [cell for cell in verdict.cells if cell.level != "ids"]
    assert {cell.repeats for cell in values} == {3}
    assert all(cell.repeats_identical for cell in values)
    assert all(cell.moved_rows == () for cell in values if cell.grouping != "alone")
    assert verdict.notes == ("batch_1: ran microbatches of alone, as it is meant to",)
    assert "parity passed" in verdict.words
    assert not verdict.quick
    assert not verdict.baseline


def test_the_session_runs_once_a_grouping_and_repeat() -> None:
    session = FakeSession(WIDTH)
    verdict = run_gate(
        make_model("embed", session), REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT, repeats=2
    )
    assert len(session.runs) == 2 * sum(len(run.shapes) for run in verdict.runs)
    by_name = {run.name: run for run in verdict.runs}
    assert {rows for rows, _ in by_name["alone"].shapes} == {1}
    assert max(rows for rows, _ in by_name["batch_8"].shapes) == 8
    assert by_name["long_among_short"].shapes[0][0] == 3
    assert len({run.features_digest for run in verdict.runs}) == len(verdict.runs) == 11


def swap_rows(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return raw if len(raw) < 2 else raw[[1, 0, *range(2, len(raw))]]


def one_component(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    raw[:, -1] += np.float32(0.01)
    return raw


def noise_by_row(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return raw + (np.arange(len(raw), dtype=np.float32) * np.float32(0.01))[:, None]


def padding_leaks(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
    padding = features.shape[1] - features.attention_mask.sum(axis=1)
    return raw + np.where(padding > 3, 0.05, 0).astype(np.float32)[:, None]


def test_swapped_rows_are_refused_in_every_grouping_but_alone() -> None:
    for task, level in (("embed", "raw"), ("rerank", "logits")):
        verdict = gate(task, swap_rows)
        failing = {cell.grouping for cell in verdict.cells if not cell.passed}
        assert failing == {run.name for run in verdict.runs} - {"alone", "batch_1"}
        assert any(failure.startswith(f"{level}/batch_8: ") for failure in verdict.failures)


def test_one_component_off_is_refused_everywhere() -> None:
    verdict = gate("embed", one_component)
    failing = {cell.name for cell in verdict.cells if not cell.passed}
    assert {f"raw/{run.name}" for run in verdict.runs} <= failing
    assert "worst row" in verdict.failures[0]
    assert "component 383" in verdict.failures[0]
    # It lies beyond the prefix, which is cut before normalising and so cannot see it.
    assert not any(name.startswith("prefix_256") for name in failing)


def test_noise_by_position_is_refused_with_the_rows() -> None:
    verdict = gate("rerank", noise_by_row)
    default = next(cell for cell in verdict.cells if cell.name == "logits/default")
    assert default.comparison is not None
    assert 0 < len(default.comparison.failing_rows) < default.comparison.rows
    assert next(cell for cell in verdict.cells if cell.name == "logits/alone").passed


def test_padding_that_leaks_is_refused_where_there_is_padding() -> None:
    verdict = gate("embed", padding_leaks)
    failing = {cell.grouping for cell in verdict.cells if not cell.passed}
    assert "long_among_short" in failing
    assert {"alone", "equal_lengths"}.isdisjoint(failing)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_rows_that_are_not_finite_or_zero_are_refused(value: float) -> None:
    def bad_long_rows(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        raw[features.attention_mask.sum(axis=1) > 1000] = value
        return raw

    verdict = gate("embed", bad_long_rows)
    assert not verdict.passed
    alone = [failure for failure in verdict.failures if "/alone: " in failure]
    assert len(alone) == 1  # a grouping that cannot run is said once, not once a level
    assert alone[0].startswith("raw/alone: could not be computed: ")


def test_failures_go_on_after_a_grouping_that_cannot_run() -> None:
    def no_eights(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        if len(raw) == 8:
            raise SessionRunError("out of luck")
        return one_component(raw, _features)

    verdict = gate("embed", no_eights)
    assert "raw/batch_8: could not be computed: out of luck" in verdict.failures
    assert any(failure.startswith("raw/shuffled: ") for failure in verdict.failures)


def other_bits_in_company(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return raw if len(raw) == 1 else np.nextafter(raw, np.float32(2))


def test_bits_that_depend_on_the_grouping_fail_only_where_they_may_not() -> None:
    verdict = gate("embed", other_bits_in_company)
    assert not verdict.passed
    moved = next(failure for failure in verdict.failures if failure.startswith("raw/batch_8: "))
    assert moved.endswith("294 of 294 rows have other bits than alone, first row 0")
    assert all(cell.comparison is None or cell.comparison.passed for cell in verdict.cells)
    assert not any(failure.startswith("raw/batch_1:") for failure in verdict.failures)
    loose = gate("embed", other_bits_in_company, profile=LOOSE)
    assert loose.passed
    assert moved in loose.notes


def test_repeats_with_other_bits_fail_only_where_they_may_not() -> None:
    runs = iter(range(10**6))

    def drifting(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        return raw if next(runs) < 130 else np.nextafter(raw, np.float32(2))  # from the second repeat of "alone" on

    verdict = gate("rerank", drifting)
    assert any("repeats of the same run gave other bits" in failure for failure in verdict.failures)
    runs = iter(range(10**6))
    assert gate("rerank", drifting, profile=LOOSE).passed


def test_a_failure_in_one_repeat_is_a_failure() -> None:
    runs = iter(range(10**6))

    def once_wrong(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        return raw + np.float32(1) if next(runs) == 130 else raw  # within the second repeat of "alone"

    verdict = gate("rerank", once_wrong, profile=LOOSE)
    assert any(failure.startswith("logits/alone: 1 of 126 rows differ") for failure in verdict.failures)


def test_other_token_ids_are_refused_and_values_still_compared() -> None:
    model = make_model("embed", end=False)
    verdict = run_gate(model, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    assert verdict.failures[0].startswith("ids/together: row 0: token id 257 instead of 256 at position 0")
    assert any(failure.startswith("ids/alone: ") for failure in verdict.failures)
    assert any(failure.startswith("raw/alone: ") for failure in verdict.failures)


def test_a_case_that_is_refused_fails_the_gate() -> None:
    model = make_model("embed")
    short = dataclasses.replace(model, tokenizer=Tokenizer(raw_tokenizer(), 8))
    verdict = run_gate(short, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    assert verdict.failures[0].startswith("ids/together: a case was refused: max_tokens: 16 given")
    assert not verdict.runs


class DeafEngine(Engine):
    """An engine that ignores what the caller asks for."""

    def run_rows(
        self,
        rows: Sequence[TokenRow],
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        deadline_s: float | None = None,
        recorder: RunRecorder | None = None,
    ) -> NDArray[np.float32]:
        return Engine.run_rows(self, rows, batch_size=self.max_rows, recorder=recorder)


def test_a_batch_size_that_is_ignored_is_refused() -> None:
    model = make_model("embed")
    deaf = dataclasses.replace(model, engine=DeafEngine(session=FakeSession(WIDTH), width=WIDTH))
    verdict = run_gate(deaf, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    assert "batch_8: 32 rows ran together although at most 8 were asked for" in verdict.failures
    assert "batch_1: 32 rows ran together although at most 1 were asked for" in verdict.failures
    for budget in (512, 1024):
        words = f"tokens ran together although at most {budget} were asked for"
        assert any(failure.startswith(f"budget_{budget}: ") and failure.endswith(words) for failure in verdict.failures)
    vacuous = "batch_32: ran the same microbatches as batch_8, so it proves nothing (vacuous)"
    assert vacuous in verdict.failures
    assert {run.same_as for run in verdict.runs if run.name == "batch_32"} == {"batch_8"}


def test_a_limit_lower_than_asked_for_makes_batches_alike() -> None:
    model = make_model("embed")
    narrow = dataclasses.replace(model, engine=Engine(session=FakeSession(WIDTH), width=WIDTH, max_rows=8))
    verdict = run_gate(narrow, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    assert [run.name for run in verdict.runs if run.same_as] == ["batch_32"]
    assert verdict.failures == ("batch_32: ran the same microbatches as batch_8, so it proves nothing (vacuous)",)


class UnbudgetedEngine(Engine):
    """An engine that drops the token budget asked for, in silence."""

    def run_rows(
        self,
        rows: Sequence[TokenRow],
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        deadline_s: float | None = None,
        recorder: RunRecorder | None = None,
    ) -> NDArray[np.float32]:
        return Engine.run_rows(self, rows, batch_size=batch_size, recorder=recorder)


def test_a_budget_that_is_dropped_is_refused_even_where_it_would_not_bind() -> None:
    model = make_model("embed")
    deaf = dataclasses.replace(model, engine=UnbudgetedEngine(session=FakeSession(WIDTH), width=WIDTH))
    verdict = run_gate(deaf, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    for name in ("budget_512", "budget_1024", "budget_4096"):
        assert f"{name}: ran the same microbatches as default, so it proves nothing (vacuous)" in verdict.failures


class OtherProviderSession(FakeSession):
    """Right in every bit, computed by another provider than was asked for."""

    provider = "DmlExecutionProvider"


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("profile", [EXACT, LOOSE])
def test_a_session_of_another_provider_is_refused_in_words(profile: Profile, quick: bool) -> None:
    for task, width in (("embed", WIDTH), ("rerank", 1)):
        model = make_model(task, OtherProviderSession(width))
        verdict = run_gate(model, REFERENCES[task], tolerance=LOCK.tolerance, profile=profile, quick=quick)
        assert all(cell.passed for cell in verdict.cells)
        (failure,) = verdict.failures
        assert failure.startswith("provider: the session computes with DmlExecutionProvider, ")
        assert failure.endswith(f"the profile {profile.name} is for {FakeSession.provider}")
        assert not verdict.passed
        assert f"failed: {failure}" in plain_lines(verdict)


def test_a_small_case_set_may_be_vacuous_but_says_so() -> None:
    cases = CaseSet(task="embed", texts=tuple(TextCase(text=text, tag="") for text in ("a", "bb", "ccc")))
    reference = make_reference("embed", cases)
    verdict = run_gate(make_model("embed"), reference, tolerance=LOCK.tolerance, profile=EXACT, case_set=cases)
    assert verdict.passed
    assert "batch_8: ran the same microbatches as default (vacuous; the case set is small)" in verdict.notes


def test_a_reference_for_something_else_is_refused() -> None:
    reference = REFERENCES["embed"]
    for change, words in (
        ({"case_set_digest": "sha256:0"}, "case set"),
        ({"lock_entry_digest": "sha256:0"}, "lock entry"),
    ):
        with pytest.raises(ReferenceMissingError) as caught:
            run_gate(
                make_model("embed"),
                dataclasses.replace(reference, **cast("Any", change)),
                tolerance=LOCK.tolerance,
                profile=EXACT,
            )
        assert f"was captured for another {words}" in str(caught.value)


def test_the_verdict_becomes_a_receipt(tmp_path: Path) -> None:
    binding = Binding(
        model="toy-qwen3-embedder",
        profile="exact",
        artifact_digest="sha256:a",
        lock_entry_digest="sha256:b",
        case_set_digest="sha256:c",
        fixture_digest="sha256:f",
        provider="Fake",
        provider_options={},
        session_options={},
        onnxruntime_version="1.32.0",
        device="none",
        samevec_version="0",
    )
    for verdict, state in ((gate("embed", padding_leaks), "failed"), (gate("embed"), "passed")):
        write_receipt([tmp_path], verdict.to_receipt(binding, created_at="2030-01-01T00:00:00Z"))
        found = gate_state([tmp_path], binding)
        assert found.state == state
        assert found.receipt is not None
        assert found.receipt.failures == list(verdict.failures)
        assert found.receipt.summary["n_cases"] == 301
        assert len(found.receipt.summary["cells"]) == len(verdict.cells)


def test_rendering_names_every_grouping() -> None:
    for verdict in (gate("embed"), gate("rerank", swap_rows)):
        lines = plain_lines(verdict)
        assert all(any(line.startswith(run.name) for line in lines) for run in verdict.runs)
        assert [line for line in lines if line.startswith("failed: ")] == [f"failed: {f}" for f in verdict.failures]
        console = Console(width=200, record=True, file=None, quiet=True)
        console.print(verdict_table(verdict))
        json.dumps(verdict.to_dict(), allow_nan=False)


def test_progress_is_told_every_run() -> None:
    seen: list[float] = []

    class Counting:
        @contextmanager
        def step(self, label: str, *, total: float | None = None, unit: str = "") -> Any:
            seen.append(-float(total or 0))
            yield seen.append

        def note(self, message: str) -> None:
            pass

    gate("rerank", progress=cast("Any", Counting()))
    assert seen == [-36.0, *[1] * 36]


def test_a_quick_gate_runs_less_and_says_so() -> None:
    for task, repeats in (("embed", 2), ("rerank", 2)):
        full = builtin_cases(task, prompts=("query", "document"))
        verdict = gate(task, quick=True)
        assert verdict.passed
        assert verdict.quick
        assert verdict.to_dict()["quick"] is True
        assert verdict.case_set_digest == full.digest
        assert verdict.n_cases == len(quick_positions(full))
        assert tuple(run.name for run in verdict.runs) == QUICK_GROUPINGS
        assert verdict.repeats == repeats
        assert f"{len(full) - verdict.n_cases} of the {len(full)} cases (quick)" in verdict.not_measured
        assert any(words.startswith("groupings (quick): batch_1, batch_32") for words in verdict.not_measured)
        assert "quick parity passed" in verdict.words
        assert [error.case for error in verdict.row_errors["alone"]] == list(quick_positions(full))


def test_a_quick_gate_reports_cases_by_their_numbers_in_the_full_set() -> None:
    full = builtin_cases("embed", prompts=("query", "document"))
    target = next(i for i in reversed(quick_positions(full)) if full.texts[i].tag == "marker-like")
    ids = REFERENCES["embed"].ids[target]

    def marked_row_is_wrong(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        for i, row in enumerate(features.input_ids):
            if tuple(row[: len(ids)].tolist()) == ids:
                raw[i] += np.float32(0.5)
        return raw

    verdict = gate("embed", marked_row_is_wrong, quick=True)
    cell = next(cell for cell in verdict.cells if cell.name == "raw/default")
    assert cell.comparison is not None
    assert cell.comparison.failing_rows == (target,)
    assert f"worst row {target} " in cell.failures[0]
    assert "(marker-like)" in cell.failures[0]
    assert verdict.worst_rows[0][1].case == target
    assert verdict.worst_rows[0][1].tag == "marker-like"


@pytest.mark.parametrize("wrong", [swap_rows, one_component, noise_by_row, padding_leaks])
def test_a_quick_gate_refuses_what_the_full_one_refuses(wrong: Wrong) -> None:
    for task in ("embed", "rerank"):
        assert not gate(task, wrong, quick=True).passed


def test_row_errors_and_histograms_are_there_for_plots() -> None:
    verdict = gate("embed", padding_leaks)
    assert verdict.error_level == "raw"
    assert set(verdict.row_errors) == set(verdict.histograms) == {"alone", "default"}
    for name, errors in verdict.row_errors.items():
        assert [error.case for error in errors] == list(range(301))
        assert [error.tokens for error in errors] == [len(ids) for ids in REFERENCES["embed"].ids]
        assert sum(verdict.histograms[name].counts) == 301 * WIDTH
    assert {error.ratio for error in verdict.row_errors["alone"]} == {0.0}
    default = next(cell for cell in verdict.cells if cell.name == "raw/default")
    assert default.comparison is not None
    failing = tuple(error.case for error in verdict.row_errors["default"] if error.ratio > 1)
    assert failing == default.comparison.failing_rows
    assert max(error.max_abs for error in verdict.row_errors["default"]) == default.comparison.max_abs
    grouping, worst = verdict.worst_rows[0]
    assert (grouping, worst.ratio) == ("default", default.comparison.worst_ratio)
    assert len(verdict.worst_rows) == 10
    record = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert record["worst_rows"][0] == {"grouping": "default", **worst.to_dict()}
    assert len(record["row_errors"]["default"]) == 301


def test_what_was_fed_is_recorded_with_every_cell() -> None:
    verdict = gate("rerank")
    runs = {run.name: run for run in verdict.runs}
    for cell in verdict.cells:
        if cell.level != "ids":
            assert cell.features_digest == runs[cell.grouping].features_digest
            assert cell.shapes == runs[cell.grouping].shapes
    assert gate("rerank").runs == verdict.runs


def test_the_verdict_says_what_was_judged_by_what() -> None:
    verdict = gate("embed", artifact_digest="sha256:a")
    record = verdict.to_dict()
    assert record["lock_entry_digest"] == LOCK.model("toy-qwen3-embedder").digest
    assert record["artifact_digest"] == "sha256:a"
    assert record["case_set_digest"] == builtin_cases("embed", prompts=("query", "document")).digest
    assert record["driver_digest"] == driver_digest()


def test_the_driver_digest_is_of_the_sources(tmp_path: Path) -> None:
    for room in ("parity", "runtime", "server"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "a.py").write_text("one\n")
    before = driver_digest(tmp_path)
    driver_digest.cache_clear()
    (tmp_path / "server" / "a.py").write_text("two\n")
    assert driver_digest(tmp_path) == before
    driver_digest.cache_clear()
    (tmp_path / "runtime" / "a.py").write_text("two\n")
    assert driver_digest(tmp_path) != before
    driver_digest.cache_clear()


def test_findings_from_elsewhere_are_added() -> None:
    verdict = gate("rerank")
    bad = Cell(level="logits", grouping="elsewhere", comparison=None, error="not there")
    gap = verdict.not_measured[0]
    more = verdict.with_findings(cells=[bad], failures=["a failure"], notes=["a note"], measured=[gap])
    assert more.failures == ("logits/elsewhere: not there", "a failure")
    assert more.notes == (*verdict.notes, "a note")
    assert gap not in more.not_measured
    assert len(more.cells) == len(verdict.cells) + 1
    assert any(line.startswith("elsewhere") for line in plain_lines(more))


def with_golden(task: str, golden: Golden) -> Model:
    model = make_model(task)
    return dataclasses.replace(model, entry=dataclasses.replace(model.entry, golden=golden))


def embedder_golden(shift: float = 0.0, *, end: int = 256) -> Golden:
    """Return what the fake embedder gives, one cosine moved."""
    queries, documents = ("one", "two"), ("three", "four")
    model = make_model("embed")
    assert isinstance(model, Embedder)
    cosines = (model.encode(queries, prompt="query") @ model.encode(documents).T).astype(float).tolist()
    cosines[1][0] += shift
    values = tuple(tuple(row) for row in cosines)
    ids = (*model.tokenize(["one"], prompt="query")[0].ids[:-1], end)
    return Golden(
        tokens=(GoldenTokens(text="one", prompt="query", ids=ids),),
        cosines=GoldenCosines(queries=queries, documents=documents, values=values, prompt="query"),
    )


def reranker_golden(shift: float = 0.0) -> Golden:
    model = make_model("rerank")
    assert isinstance(model, Reranker)
    pairs = [("one", "two"), ("three", "four")]
    logits = model.score(pairs, raw=True).tolist()
    logits[1] += shift
    return Golden(
        pairs=tuple(
            GoldenPair(query=query, document=document, logit=logit, score=0.5, ids=model.tokenize([pair])[0].ids)
            for pair, (query, document), logit in zip(pairs, pairs, logits, strict=True)
        )
    )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("allowances", "passes"), [(0.0, True), (0.95, True), (1.05, False)])
def test_values_of_the_model_card_from_both_sides(allowances: float, passes: bool, sign: int) -> None:
    for task, golden, name in (
        ("embed", embedder_golden(sign * allowances * COSINE_ALLOWANCE), "cosines"),
        ("rerank", reranker_golden(sign * allowances * LOGIT_ALLOWANCE), "logits"),
    ):
        cells = {cell.name: cell for cell in golden_cells(with_golden(task, golden))}
        assert set(cells) == {"golden/ids", f"golden/{name}"}
        assert cells["golden/ids"].passed
        assert cells[f"golden/{name}"].passed is passes
        assert cells[f"golden/{name}"].limits == (COSINE_ALLOWANCE if task == "embed" else LOGIT_ALLOWANCE, 0.0)
        if not passes:
            assert "worst row 1 component 0" in cells[f"golden/{name}"].failures[0]


def test_token_ids_of_the_model_card_must_be_equal() -> None:
    ids, cosines = golden_cells(with_golden("embed", embedder_golden(end=257)))
    assert "golden/ids: row 0: token id 256 instead of 257" in ids.failures[0]
    assert cosines.passed


def test_a_model_that_refuses_the_cards_texts_fails() -> None:
    golden = dataclasses.replace(embedder_golden(), tokens=(GoldenTokens(text="one", prompt="none", ids=(1,)),))
    assert "'none' is not a prompt" in golden_cells(with_golden("embed", golden))[0].failures[0]


def test_the_card_is_checked_only_with_the_published_weights() -> None:
    assert not is_published(LOCK.model("toy-qwen3-embedder"))
    published = load_lock(None).model("qwen3-embedding-0.6b")
    assert is_published(published)
    assert not is_published(dataclasses.replace(published, max_tokens=512))
    unchecked = gate("embed")
    assert not any(cell.level == "golden" for cell in unchecked.cells)
    gap = "the model card's golden values: these are not the published weights of the packaged lock"
    assert gap in unchecked.not_measured
    # The fake session is not the toy model, so that the values its lock states are wrong for it.
    checked = gate("embed", golden=True)
    assert any(failure.startswith("golden/cosines: ") for failure in checked.failures)
    assert not any("golden" in words for words in checked.not_measured)
    assert any(line.startswith("golden, cosines") for line in plain_lines(checked))


def test_a_live_reference_is_compared_with_the_stored_one_and_the_candidate() -> None:
    for task, first in (("embed", "raw"), ("rerank", "logits")):
        stored = REFERENCES[task]
        cells = run_baseline(make_model(task), stored, stored, tolerance=LOCK.tolerance)
        assert all(cell.passed for cell in cells)
        assert {cell.grouping for cell in cells} == {"stored_vs_live", "candidate_vs_live"}
        raw = stored.raw.copy()
        raw[7] += np.float32(0.01)
        live = dataclasses.replace(stored, raw=raw)
        failing = [
            cell.name
            for cell in run_baseline(make_model(task), stored, live, tolerance=LOCK.tolerance)
            if not cell.passed
        ]
        assert {f"{first}/stored_vs_live", f"{first}/candidate_vs_live"} <= set(failing)
        assert not any(name.startswith("ids/") for name in failing)


def test_a_live_reference_with_other_ids_is_refused() -> None:
    stored = REFERENCES["rerank"]
    live = dataclasses.replace(stored, ids=((1, 2), *stored.ids[1:]))
    cells = run_baseline(make_model("rerank"), stored, live, tolerance=LOCK.tolerance)
    assert [cell.name for cell in cells if not cell.passed] == ["ids/stored_vs_live", "ids/candidate_vs_live"]


def test_a_candidate_that_cannot_run_leaves_the_stored_reference_compared() -> None:
    def fails(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        raise SessionRunError("out of luck")

    model = make_model("rerank", WrongSession(1, fails))
    cells = run_baseline(model, REFERENCES["rerank"], REFERENCES["rerank"], tolerance=LOCK.tolerance)
    assert cells[-1].failures == ("logits/candidate_vs_live: could not be computed: out of luck",)
    assert all(cell.passed for cell in cells[:-1])
