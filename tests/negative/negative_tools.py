"""Wrong candidates made from the exported toy pair, and the question whether the gate refuses them."""

from __future__ import annotations

import dataclasses
import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from samevec.lock import load_lock
from samevec.opening import build_model
from samevec.parity.cases.builtin import CaseSet, builtin_cases
from samevec.parity.gate import run_gate
from samevec.runtime.providers.profiles import Profile, get_profile
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samevec.lock import LockedModel
    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import Cell, Verdict
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker
    from samevec.runtime.sessions.base import Session

    Model = Embedder | Reranker

LOCK = load_lock("toy")
EMBEDDER, RERANKER = "toy-qwen3-embedder", "toy-modernbert-reranker"
#: No model of the toy lock: see ``negative_bert``.
BERT = "toy-bert-embedder"
PORTABLE = get_profile("portable")
#: Of the graphs that are edited: traced from the forwards written here, whose nodes the edits find.
TRACED_FORM = "cuda"
#: For the reference behind the Session protocol, whose bits depend on the company of a row.
TORCH = Profile(name="torch", provider="PyTorch", graph_form="none", pad_to_multiple=1)
#: As in the checkpoints' own configurations; the embedder's names none.
PAD_TOKENS = {EMBEDDER: 0, RERANKER: 259, BERT: 0}


@dataclass(frozen=True, eq=False)
class Toy:
    """A small model: its snapshot, its modules in PyTorch, its graph, and what PyTorch gives for the cases."""

    entry: LockedModel
    snapshot: Path
    torch: Any
    graph_path: Path
    cases: CaseSet
    reference: Reference

    @classmethod
    def make(cls, name: str, folder: Path) -> Toy:
        """Build one of the toy pair and export it."""
        importlib.import_module("samevec.export.toy.checkpoint").build_toy(name, folder / "snapshot")
        return cls.exported(LOCK.model(name), folder / "snapshot", folder)

    @classmethod
    def exported(cls, entry: LockedModel, snapshot: Path, folder: Path) -> Toy:
        """Load, capture and export, in the order in which the export does it."""
        reference: Any = importlib.import_module("samevec.parity.reference.pytorch")
        convert: Any = importlib.import_module("samevec.export.convert")
        torch = reference.load_reference_model(snapshot, entry)
        cases = builtin_cases(entry.task, prompts=entry.prompts, quick=True)
        captured = reference.capture_reference(torch, cases, toolchain={})
        graph_path = convert.convert(torch.module, entry, form=TRACED_FORM, directory=folder)
        return cls(entry, snapshot, torch, graph_path, cases, captured)

    def model(
        self, session: Session | None = None, *, tokenizer_path: Path | None = None, pad_to_multiple: int = 4
    ) -> Any:
        """The objects that serve, around a session; around the exported graph when none is given."""
        return build_model(
            self.entry,
            session or graph_session(self.graph_path),
            tokenizer_path=tokenizer_path or self.snapshot / "tokenizer.json",
            pad_token_id=PAD_TOKENS[self.entry.name],
            pad_to_multiple=pad_to_multiple,
        )

    def with_cases(self, extra: CaseSet) -> Toy:
        """The same with more cases, which PyTorch computes now."""
        capture = importlib.import_module("samevec.parity.reference.pytorch").capture_reference
        texts, pairs = self.cases.texts + extra.texts, self.cases.pairs + extra.pairs
        cases = CaseSet(task=self.cases.task, texts=texts, pairs=pairs)
        return dataclasses.replace(self, cases=cases, reference=capture(self.torch, cases, toolchain={}))

    def edited(self, edit: Callable[[onnx.ModelProto], None], folder: Path) -> OnnxSession:
        """The exported graph after an edit."""
        return graph_session(edited_graph(self.graph_path, edit, folder))

    def judge(self, model: Model, *, profile: Profile = PORTABLE) -> Verdict:
        """Ask the quick gate; the full one runs these cases and groupings too, and more."""
        return run_gate(
            model,
            self.reference,
            tolerance=LOCK.tolerance,
            profile=profile,
            case_set=self.cases,
            repeats=1,
            quick=True,
        )


def quantised(graph_path: Path, folder: Path) -> Path:
    """Write a graph with int8 products, as ONNX Runtime's own tool makes it."""
    quantize_dynamic(str(graph_path), str(folder / "model.onnx"), weight_type=QuantType.QInt8)
    return folder / "model.onnx"


def edited_graph(graph_path: Path, edit: Callable[[onnx.ModelProto], None], folder: Path) -> Path:
    """Write a graph after an edit, weights inside."""
    model = onnx.load(str(graph_path))
    edit(model)
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


def without_end_rule(tokenizer_path: Path, folder: Path) -> Path:
    """Write the tokenizer as files are without the step that appends the end token."""
    record = json.loads(tokenizer_path.read_bytes())
    steps = record["post_processor"]["processors"]
    (end_rule,) = [step for step in steps if step["type"] == "TemplateProcessing"]
    end_rule["single"] = [step for step in end_rule["single"] if "Sequence" in step]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(record))
    return path


def graph_session(path: Path) -> OnnxSession:
    """Load a graph on one thread."""
    return OnnxSession(path, PORTABLE, n_threads=1)


def cell_of(verdict: Verdict, name: str) -> Cell:
    """The cell of that name."""
    return next(cell for cell in verdict.cells if cell.name == name)


def require_refused(verdict: Verdict, *names: str, by: float = 1.0) -> None:
    """Demand that each named cell refuses by its values, and that the worst is this many times its allowance."""
    assert not verdict.passed
    for name in names:
        comparison = cell_of(verdict, name).comparison
        assert comparison is not None, name
        assert not comparison.passed, f"{name}: {comparison.words}"
        assert any(failure.startswith(f"{name}: {comparison.words}") for failure in verdict.failures), name
        assert name.startswith("ids/") or comparison.worst_ratio >= by, (name, comparison.worst_ratio)


def require_agreed(verdict: Verdict, *names: str) -> None:
    """Demand that the values of these cells are right: another cell had to catch the mistake."""
    for name in names:
        comparison = cell_of(verdict, name).comparison
        assert comparison is not None, name
        assert comparison.passed, f"{name}: {comparison.words}"
