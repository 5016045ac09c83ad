"""What embedder and reranker share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from samevec.errors import EmptyInputError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from samevec.lock import LockedModel, Task
    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.engine import Engine, RunRecorder
    from samevec.runtime.reranker import Reranker
    from samevec.runtime.rows import TokenRow
    from samevec.runtime.tokenization import Tokenizer

__all__ = ["Model", "ModelBase"]

#: Told apart by its ``task``.
Model: TypeAlias = "Embedder | Reranker"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelBase:
    """A model ready to compute; safe to share between threads.

    Attributes
    ----------
    task : {"embed", "rerank"}
    entry : LockedModel
        The pinned facts: prompts, pooling, activation, limits.
    tokenizer : Tokenizer
    engine : Engine
    """

    task: ClassVar[Task]
    #: What callers hand over, and the name of that argument in messages.
    _items: ClassVar[str]
    _field: ClassVar[str]

    entry: LockedModel
    tokenizer: Tokenizer
    engine: Engine

    @property
    def name(self) -> str:
        """The model's name in the lock."""
        return self.entry.name

    @property
    def max_tokens(self) -> int:
        """The longest text or pair in tokens, special tokens included."""
        return self.tokenizer.max_tokens

    def prompt_text(self, name: str | None, *, field: str = "prompt") -> str:
        """Return the text of a prompt of the lock, empty without a name.

        Raises
        ------
        InputError
            The lock has no such prompt; names `field`.
        """
        if name is None:
            return ""
        prompts = self.entry.prompts
        if name not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise InputError(f"{name!r} is not a prompt of {self.name} (it has: {known})", field=field)
        return prompts[name]

    def compute(
        self,
        rows: Sequence[TokenRow],
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        deadline_s: float | None = None,
        recorder: RunRecorder | None = None,
        char_lengths: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """Return raw rows, shape (n_rows, width): pooled vectors, or a logit each.

        See :meth:`samevec.runtime.engine.Engine.run_rows`, or with `char_lengths`
        :meth:`samevec.runtime.engine.Engine.run_native`.
        """
        if not rows:
            raise EmptyInputError(f"no {self._items} given, at least one is needed", field=self._field)
        if char_lengths is not None:
            return self.engine.run_native(
                rows, char_lengths, batch_size=batch_size, deadline_s=deadline_s, recorder=recorder
            )
        return self.engine.run_rows(
            rows, batch_size=batch_size, token_budget=token_budget, deadline_s=deadline_s, recorder=recorder
        )

    def run_microbatch(self, rows: Sequence[TokenRow], *, cancel: CancelToken | None = None) -> NDArray[np.float32]:
        """Return raw rows computed in one session run."""
        return self.engine.run_microbatch(rows, cancel=cancel)
