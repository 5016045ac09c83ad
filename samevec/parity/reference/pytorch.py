"""The PyTorch reference: sentence-transformers' own encode and predict, in float32, one input at a time.

Nothing here is patched, fused or batched: whatever the candidate does differently has to show. torch and
sentence-transformers are imported when a reference is loaded, so importing this module costs nothing.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from samevec.errors import ConfigError, ExportError
from samevec.machine import allowed_cpus
from samevec.parity.cases.builtin import TextCase
from samevec.parity.cases.texts import letters
from samevec.parity.limit import LIMIT_QUERY, LimitCase, ids_digest
from samevec.parity.rankings.retrieval import fixture_cases
from samevec.parity.reference.file import CapturedRow, Reference, RetrievalReference
from samevec.progress import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from samevec.lock import LockedModel
    from samevec.parity.cases.builtin import CaseSet, PairCase
    from samevec.parity.rankings.retrieval import RetrievalFixture
    from samevec.progress import Progress

__all__ = ["ReferenceModel", "capture_reference", "import_reference_libraries", "load_reference_model"]

# The lock's word for a pooling: what sentence-transformers calls it.
_POOLING_MODES = {"last_token": "lasttoken", "mean": "mean", "cls": "cls"}


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """A loaded reference.

    Attributes
    ----------
    entry : LockedModel
    pipeline : sentence_transformers.SentenceTransformer or sentence_transformers.CrossEncoder
        Float32, on the CPU, in evaluation mode.
    """

    entry: LockedModel
    pipeline: Any

    @property
    def module(self) -> Any:
        """The transformers model inside, for the export; change it only after capturing."""
        return self.pipeline[0].model

    @property
    def type_ids(self) -> bool:
        """Whether the pipeline feeds segment ids."""
        return "token_type_ids" in self.pipeline.tokenizer.model_input_names

    def capture_texts(
        self, texts: Sequence[str], *, prompt: str | None = None, max_tokens: int | None = None
    ) -> list[CapturedRow]:
        """Embed texts one at a time.

        Parameters
        ----------
        texts : sequence of str
        prompt : str, optional
            Name of a prompt, applied by sentence-transformers itself.
        max_tokens : int, optional
            Limit for this call; the model's own otherwise.

        Returns
        -------
        list of CapturedRow
            In the order of `texts`.
        """
        return [self._capture(text, prompt=prompt, max_tokens=max_tokens) for text in texts]

    def capture_pairs(self, pairs: Sequence[tuple[str, str]], *, max_tokens: int | None = None) -> list[CapturedRow]:
        """Score pairs one at a time; parameters as for :meth:`capture_texts`."""
        return [self._capture(pair, prompt=None, max_tokens=max_tokens) for pair in pairs]

    def capture_cases(self, case_set: CaseSet, *, progress: Progress | None = None) -> list[CapturedRow]:
        """Compute every case of a set, in its order."""
        rows = []
        label = f"reference {self.entry.name}"
        with (progress or SilentProgress()).step(label, total=len(case_set), unit="cases") as advance:
            for case in case_set.cases:
                rows.append(self._capture_case(case))
                advance(1)
        return rows

    def capture_limit(self) -> tuple[LimitCase, ...]:
        """Tokenise a text at the limit and one a token longer; nothing is run.

        Raises
        ------
        ExportError
            The tokenizer gives no such texts.
        """
        tokenizer, limit = self.pipeline.tokenizer, self.entry.max_tokens
        before = () if self.entry.task == "embed" else (LIMIT_QUERY,)
        text, settings = letters(limit), {"add_special_tokens": False, "verbose": False}
        ends = [end for _, end in tokenizer(text, return_offsets_mapping=True, **settings)["offset_mapping"]]
        n_beside = tokenizer.num_special_tokens_to_add(pair=bool(before))
        n_beside += sum(len(tokenizer(one, **settings)["input_ids"]) for one in before)
        cases = []
        for n_tokens in (limit, limit + 1):
            n_characters = ends[n_tokens - n_beside - 1]
            item = (*before, text[:n_characters])
            if len(tokenizer(*item, verbose=False)["input_ids"]) != n_tokens:
                raise ExportError(f"{self.entry.name}: no text of exactly {n_tokens} tokens was found")
            ids = tokenizer(*item, truncation="longest_first", max_length=limit)["input_ids"]
            cases.append(LimitCase(n_characters, n_tokens, ids_digest(ids)))
        return tuple(cases)

    def _capture_case(self, case: TextCase | PairCase) -> CapturedRow:
        if isinstance(case, TextCase):
            return self._capture(case.text, prompt=case.prompt, max_tokens=case.max_tokens)
        return self._capture((case.query, case.document), prompt=None, max_tokens=case.max_tokens)

    def _capture(self, item: str | tuple[str, str], *, prompt: str | None, max_tokens: int | None) -> CapturedRow:
        seen: dict[str, Any] = {}
        limit = self.pipeline.max_seq_length
        handles = self._watch(seen)
        self.pipeline.max_seq_length = limit if max_tokens is None else min(max_tokens, limit)
        try:
            if self.entry.task == "embed":
                final = self.pipeline.encode([item], batch_size=1, prompt_name=prompt, show_progress_bar=False)
            else:
                final = self.pipeline.predict([item], batch_size=1, show_progress_bar=False)
        finally:
            self.pipeline.max_seq_length = limit
            for handle in handles:
                handle.remove()
        if not bool(seen["attention_mask"].all()):
            raise ExportError(f"{self.entry.name}: the reference padded a single input")
        ids = tuple(int(i) for i in seen["input_ids"][0])
        return CapturedRow(ids, _float32(seen["raw"][0].numpy()), _float32(final[0]))

    def _watch(self, seen: dict[str, Any]) -> list[Any]:
        """Note what goes into the transformer, and what comes out before normalisation or activation."""

        def note_input(_module: Any, arguments: tuple[Any, ...]) -> None:
            seen.update({name: arguments[0][name].clone() for name in ("input_ids", "attention_mask")})

        def note_output(_module: Any, _arguments: Any, features: Mapping[str, Any]) -> None:
            key = "sentence_embedding" if self.entry.task == "embed" else "scores"
            seen["raw"] = features[key].detach().clone()

        source = _named_module(self.pipeline, "Pooling") if self.entry.task == "embed" else self.pipeline[0]
        return [self.pipeline[0].register_forward_pre_hook(note_input), source.register_forward_hook(note_output)]


def _float32(values: Any) -> Any:
    """Return values as a vector; a change of type here would hide that the reference is not float32."""
    array = np.atleast_1d(np.asarray(values))
    if array.dtype != np.float32:
        raise ExportError(f"the reference computed {array.dtype}, not float32")
    return np.ascontiguousarray(array)


def _named_module(pipeline: Any, name: str) -> Any:
    """Return the pipeline's module of a class; by name, since the classes' own home moves between versions."""
    return next((module for module in pipeline if type(module).__name__ == name), None)


def import_reference_libraries() -> tuple[Any, Any]:
    """Import torch and sentence-transformers.

    Returns
    -------
    tuple
        The two modules.

    Raises
    ------
    ConfigError
        One of them is not installed.
    """
    try:
        return importlib.import_module("torch"), importlib.import_module("sentence_transformers")
    except ImportError as error:
        raise ConfigError(
            f"the PyTorch reference needs {error.name}; install it with: pip install 'samevec[export]'"
        ) from error


def load_reference_model(snapshot: Path, entry: LockedModel) -> ReferenceModel:
    """Load the pinned checkpoint as sentence-transformers runs it.

    Parameters
    ----------
    snapshot : Path
        Folder of verified files; nothing else is read, nothing is fetched, no code from it is run.
    entry : LockedModel

    Returns
    -------
    ReferenceModel

    Notes
    -----
    Sets torch's number of threads for this process to what the machine allows it.

    Raises
    ------
    ConfigError
        sentence-transformers or torch is not installed.
    ExportError
        The files describe another pipeline than the lock entry: pooling, normalisation, activation, prompts or limit.
    """
    torch, library = import_reference_libraries()
    # torch counts the host's cores, whatever the container's share; and its threads spin while they wait for another,
    # which on a busy machine made the toy models, too small to share out, seven times slower than one thread.
    torch.set_num_threads(1 if entry.source.startswith("toy:") else allowed_cpus())
    options: dict[str, Any] = {
        "device": "cpu",
        "local_files_only": True,
        "trust_remote_code": False,
        "model_kwargs": {"dtype": torch.float32, "use_safetensors": True},
        # False keeps the pinned tokenizer.json as it is; unset, transformers 4.57 does the same but warns of an
        # "incorrect regex pattern" for every tokenizer loaded from a folder whose config.json names no old version.
        "processor_kwargs": {"fix_mistral_regex": False},
    }
    if entry.architecture == "modernbert":
        # Otherwise transformers compiles the model where it finds a compiler: other kernels, and minutes of waiting.
        options["config_kwargs"] = {"reference_compile": False}
    with warnings.catch_warnings():
        # torch 2.13 warns of its own use of it when transformers' ModernBERT is imported.
        warnings.filterwarnings(
            "ignore", message="`torch.jit.script_method` is deprecated", category=DeprecationWarning
        )
        if entry.task == "embed":
            pipeline = library.SentenceTransformer(str(snapshot), **options)
        else:
            pipeline = library.CrossEncoder(str(snapshot), max_length=entry.max_tokens, **options)
    pipeline.eval()
    _require_entry(pipeline, entry)
    return ReferenceModel(entry, pipeline)


def _require_entry(pipeline: Any, entry: LockedModel) -> None:
    """Refuse a pipeline that is not the one the lock describes; a lower limit in the lock is applied."""
    problems = _embedder_problems(pipeline, entry) if entry.task == "embed" else _reranker_problems(pipeline, entry)
    limit = pipeline.max_seq_length
    if limit is None or limit < entry.max_tokens:
        problems.append(f"it takes {limit} tokens, the lock says {entry.max_tokens}")
    pipeline.max_seq_length = entry.max_tokens
    types = sorted({str(parameter.dtype) for parameter in pipeline.parameters()})
    if types != ["torch.float32"]:
        problems.append(f"its weights are {', '.join(types)}, not float32")
    if problems:
        raise ExportError(f"{entry.name}: the files and the lock disagree: {'; '.join(problems)}")


def _embedder_problems(pipeline: Any, entry: LockedModel) -> list[str]:
    pooling = _named_module(pipeline, "Pooling")
    mode = getattr(pooling, "pooling_mode", None)
    problems = []
    if mode != _POOLING_MODES[entry.pooling]:
        problems.append(f"pooling is {mode}, the lock says {entry.pooling}")
    elif not pooling.include_prompt:
        problems.append("pooling leaves the prompt out, which is not supported")
    normalizes = _named_module(pipeline, "Normalize") is not None
    if normalizes != entry.normalize:
        problems.append(f"it {'normalises' if normalizes else 'does not normalise'}, the lock says otherwise")
    problems += [
        f"prompt {name!r} is {pipeline.prompts.get(name)!r}, the lock says {text!r}"
        for name, text in entry.prompts.items()
        if pipeline.prompts.get(name) != text
    ]
    if pipeline.default_prompt_name is not None:
        problems.append(f"it applies the prompt {pipeline.default_prompt_name!r} unasked, which is not supported")
    return problems


def _reranker_problems(pipeline: Any, entry: LockedModel) -> list[str]:
    problems = []
    activation = type(pipeline.activation_fn).__name__.lower()
    if activation != entry.activation:
        problems.append(f"activation is {activation}, the lock says {entry.activation}")
    if pipeline.num_labels != 1:
        problems.append(f"it has {pipeline.num_labels} outputs, one is supported")
    return problems


def capture_reference(
    model: ReferenceModel,
    case_set: CaseSet,
    *,
    toolchain: Mapping[str, str],
    fixture: RetrievalFixture | None = None,
    progress: Progress | None = None,
) -> Reference:
    """Compute the reference of a case set.

    Parameters
    ----------
    model : ReferenceModel
        As loaded: not yet patched for the export.
    case_set : CaseSet
    toolchain : mapping of str to str
        Versions in use, for the record.
    fixture : RetrievalFixture, optional
        Computed too; a file needs it.
    progress : Progress, optional

    Returns
    -------
    Reference
        Ready for :func:`samevec.parity.reference.file.write_reference`.
    """
    entry = model.entry
    rows = model.capture_cases(case_set, progress=progress)
    retrieval = None
    if fixture is not None:
        retrieval = RetrievalReference.from_rows(
            model.capture_cases(fixture_cases(fixture, entry.task, prompts=entry.prompts), progress=progress),
            fixture_digest=fixture.digest,
            task=entry.task,
        )
    return Reference.from_rows(
        rows,
        model=entry.name,
        case_set=case_set,
        lock_entry_digest=entry.digest,
        prompts=dict(entry.prompts),
        toolchain=dict(toolchain),
        retrieval=retrieval,
    )
