"""Texts in, vectors out, in request order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, overload

from samevec.digest import array_digest
from samevec.errors import InputError
from samevec.runtime.batching.plan import require_policy
from samevec.runtime.checks import whole_number
from samevec.runtime.model import ModelBase
from samevec.runtime.pooling import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.batching.plan import Policy
    from samevec.runtime.rows import TokenRow

__all__ = ["Embedder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedder(ModelBase):
    """An embedding model ready to compute; safe to share between threads."""

    task: ClassVar[Literal["embed"]] = "embed"
    _items: ClassVar[str] = "texts"
    _field: ClassVar[str] = "input"

    @property
    def dimensions(self) -> int:
        """Components of a full vector."""
        return self.engine.width

    @overload
    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        truncate: bool = True,
        deadline_s: float | None = None,
        policy: Policy = "samevec",
        return_digest: Literal[False] = False,
    ) -> NDArray[np.float32]: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        truncate: bool = True,
        deadline_s: float | None = None,
        policy: Policy = "samevec",
        return_digest: Literal[True],
    ) -> tuple[NDArray[np.float32], list[str]]: ...

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        truncate: bool = True,
        deadline_s: float | None = None,
        policy: Policy = "samevec",
        return_digest: bool = False,
    ) -> NDArray[np.float32] | tuple[NDArray[np.float32], list[str]]:
        """Embed texts.

        Parameters
        ----------
        texts : sequence of str
        prompt : str, optional
            Name of a prompt in the lock, such as ``"query"``; none is applied otherwise.
        dimensions : int, optional
            Matryoshka prefix, from the lock's minimum up to the width; normalised after cutting.
        normalize : bool
            Scale vectors to unit length.
        batch_size : int, optional
            Most texts of one session run; the engine's own limit still holds.
        max_tokens : int, optional
            Limit for this call, special tokens included.
        truncate : bool
            Cut longer texts (the terminal token stays); False refuses them.
        deadline_s : float, optional
            Seconds from now, looked at between session runs.
        policy : {"samevec", "native"}
            ``"native"`` groups texts as sentence-transformers does, for comparisons.
        return_digest : bool
            Give each row's digest too.

        Returns
        -------
        vectors : ndarray of float32, shape (n_texts, dimensions)
            Row i belongs to text i.
        digests : list of str
            With `return_digest`: ``"sha256:..."`` of each row's little-endian float32 bytes, which the server gives as
            ``x-samevec-digest``.

        Raises
        ------
        InputError
            A text or an option is wrong; the message names it.
        DeadlineExceededError, InferenceError
            See :meth:`samevec.runtime.engine.Engine.run_rows`.

        Examples
        --------
        >>> embedder = samevec.load_embedder("qwen3-embedding-0.6b")  # doctest: +SKIP
        >>> embedder.encode(["What is the capital of China?"], prompt="query").shape  # doctest: +SKIP
        (1, 1024)
        """
        require_policy(policy)
        self.validate_dimensions(dimensions)
        rows = self.tokenize(texts, prompt=prompt, max_tokens=max_tokens, truncate=truncate)
        char_lengths = [len(text) for text in texts] if policy == "native" else None
        raw = self.compute(rows, batch_size=batch_size, deadline_s=deadline_s, char_lengths=char_lengths)
        vectors = self.finish(raw, dimensions=dimensions, normalize=normalize)
        return (vectors, [f"sha256:{array_digest(row)}" for row in vectors]) if return_digest else vectors

    def tokenize(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        truncate: bool = True,
        field: str = "input",
    ) -> list[TokenRow]:
        """Turn texts into token rows, see :meth:`encode` for the parameters."""
        if isinstance(texts, str):
            raise InputError("one string given, a list of texts is needed", field=field)
        prefix = self.prompt_text(prompt)
        return self.tokenizer.encode_texts(texts, prompt=prefix, max_tokens=max_tokens, truncate=truncate, field=field)

    def validate_dimensions(self, dimensions: int | None) -> None:
        """Refuse a vector length this model cannot give.

        Raises
        ------
        InputError
            Not a whole number, outside the lock's range, or the model is not trained for prefixes.
        """
        if dimensions is None:
            return
        least = self.entry.matryoshka_min_dimensions
        if least is not None:
            whole_number(dimensions, field="dimensions", least=least, most=self.dimensions)
        elif whole_number(dimensions, field="dimensions") != self.dimensions:
            raise InputError(f"{self.name} gives {self.dimensions} dimensions and nothing else", field="dimensions")

    def finish(
        self,
        raw: NDArray[np.float32],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        renormalize: bool = True,
    ) -> NDArray[np.float32]:
        """Turn raw pooled vectors into what callers get, see :func:`samevec.runtime.pooling.shorten`."""
        return shorten(raw, dimensions=dimensions, normalize=normalize, renormalize=renormalize)
