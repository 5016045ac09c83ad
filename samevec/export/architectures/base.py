"""The interface of an architecture: an optimum configuration whose patcher traces its own forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from optimum.exporters.onnx.model_patcher import ModelPatcher

from samevec.export.contrib_ops import multi_head_attention, reshape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optimum.exporters.onnx import OnnxConfig

    from samevec.lock import LockedModel

__all__ = [
    "CUDA_COMPONENTS",
    "HIDDEN",
    "Architecture",
    "ContractConfig",
    "ForwardPatcher",
    "PaddingComponent",
    "mean_of_tokens",
    "rotary_tables",
]

#: Added to the scores of hidden keys. exp() of it is exactly 0 in float32 beside any score a model
#: gives, and it is finite, so that a block with no visible key gives numbers (which nothing reads) and not NaN.
HIDDEN = -1e5

#: Components by which a head grows on CUDA: its attention that keeps no score matrix takes heads of a multiple of 8
#: (onnxruntime 1.32 ``multihead_attention.cc``, ``has_memory_efficient_attention``).
CUDA_COMPONENTS = 8

_DYNAMIC_TOKENS = {0: "rows", 1: "tokens"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """How an architecture is exported."""

    optimum_task: str  # optimum's name of the task
    configs: Mapping[str, type[Any]]  # a ContractConfig for each traced graph form: "plain" and "cuda"
    input_names: tuple[str, ...] = ("input_ids", "attention_mask")

    def make_config(self, module: Any, form: str, entry: LockedModel) -> OnnxConfig:
        """Return the configuration that exports a module in a graph form for a lock entry."""
        config = self.configs[form](module.config, task=self.optimum_task)
        config.input_names = self.input_names
        config.max_tokens, config.pooling = entry.max_tokens, entry.pooling
        return config


class ContractConfig:
    """The contract's inputs and output in place of optimum's; a base class that stands before optimum's."""

    input_names: tuple[str, ...] = ()
    max_tokens = 0
    pooling = ""
    output_name = ""

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        """Name the inputs' dynamic axes."""
        return {name: dict(_DYNAMIC_TOKENS) for name in self.input_names}

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        """Name the output's dynamic axis."""
        return {self.output_name: {0: "rows"}}


class ForwardPatcher(ModelPatcher):  # type: ignore[misc]
    """Replaces the model's forward by :meth:`export_forward` of a subclass while optimum traces it.

    Optimum wraps ``orig_forward`` when it enters, so it is set before and restored after; the model's own forward
    stays.
    """

    orig_forward: Callable[..., Any]

    def __enter__(self) -> None:
        self._kept_forward = self.orig_forward
        self.orig_forward = self.export_forward
        super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.orig_forward = self._kept_forward
        del self._model.forward  # the instance attribute optimum leaves behind would hide the class's own forward

    def export_forward(self, *inputs: Any, **named: Any) -> dict[str, torch.Tensor]:
        """Compute ``embedding``, float32 (rows, width), or ``logits``, float32 (rows, 1), from int64 (rows, tokens)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PaddingComponent:
    """Padding as more components of each attention head: q' = [q, 1, 0 ...], k' = [k, 0 or hidden, 0 ...].

    A mask input would take the operator off the path that keeps no score matrix. Both tensors have shape (rows, tokens,
    heads, components).
    """

    query_ones: torch.Tensor  # 1 where it meets key_bias
    key_bias: torch.Tensor  # 0 on real tokens, hidden on padding; components after the first are 0

    @classmethod
    def from_bias(cls, key_bias: torch.Tensor, n_heads: int) -> PaddingComponent:
        """Build it from a bias of shape (rows, tokens); components beyond one only widen the heads."""
        per_head = reshape(key_bias, (0, -1, 1, 1)).expand(-1, -1, n_heads, -1)
        filler = [per_head * 0] * (CUDA_COMPONENTS - 1)
        return cls(torch.cat([torch.ones_like(per_head), *filler], 3), torch.cat([per_head, *filler], 3))

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, n_heads: int, scale: float
    ) -> torch.Tensor:
        """Let every token see every real one; shapes as for ``contrib_ops.multi_head_attention``."""
        query = torch.cat([reshape(query, (0, 0, n_heads, -1)), self.query_ones], 3)
        key = torch.cat([reshape(key, (0, 0, n_heads, -1)), self.key_bias], 3)
        query, key = reshape(query, (0, 0, -1)), reshape(key, (0, 0, -1))
        return multi_head_attention(query, key, value, bias=None, n_heads=n_heads, scale=scale)


def mean_of_tokens(states: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return each row's mean over its real tokens, shape (rows, width).

    `states` has shape (rows, tokens, width); `valid`, float32 of shape (rows, tokens), is 1 on real tokens.
    """
    return torch.bmm(valid.unsqueeze(1), states)[:, 0] / valid.sum(1, keepdim=True)


def rotary_tables(
    module: Any, rotary: Any, max_tokens: int, name: str, *, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine tables of a rotary embedding, stored once as buffers of the module.

    The buffers are ``<name>_cos`` and ``<name>_sin``, not saved with it: float32, shape (max_tokens, head_dim / 2),
    since the two halves of the model's are the same. `rotary` is the model's own rotary embedding; `max_tokens` caps a
    row.
    """
    with torch.no_grad():
        probe = torch.zeros(1, 1, 1, dtype=torch.float32)  # only its dtype and device are read
        cos, sin = rotary(probe, torch.arange(max_tokens).unsqueeze(0))
    for suffix, table in (("cos", cos), ("sin", sin)):
        half = table[0, :, : head_dim // 2].contiguous().clone()
        module.register_buffer(f"{name}_{suffix}", half, persistent=False)
    return getattr(module, f"{name}_cos"), getattr(module, f"{name}_sin")
