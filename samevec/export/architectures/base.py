"""What every architecture gives the export: an optimum configuration whose patcher traces our forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from optimum.exporters.onnx.model_patcher import ModelPatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optimum.exporters.onnx import OnnxConfig

__all__ = ["Architecture", "ContractConfig", "ForwardPatcher", "rotary_tables"]

_DYNAMIC_TOKENS = {0: "rows", 1: "tokens"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """How an architecture is exported and what PyTorch is compared by.

    Attributes
    ----------
    optimum_task : str
        Optimum's name of the task.
    configs : mapping of str to class
        Configuration class of each graph form, ``"plain"`` and ``"fused"``; each derives from :class:`ContractConfig`.
    reference_rows : callable (module, input_ids, attention_mask) -> Tensor
        The same raw rows through the unpatched model, for comparing by value.
    """

    optimum_task: str
    configs: Mapping[str, type[Any]]
    reference_rows: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]

    def make_config(self, module: Any, form: str, max_tokens: int) -> OnnxConfig:
        """Return the configuration that exports a module in a graph form, for rows of up to `max_tokens`."""
        config = self.configs[form](module.config, task=self.optimum_task)
        config.max_tokens = max_tokens
        return config


class ContractConfig:
    """The contract's inputs and output, in place of optimum's; put before the optimum configuration it changes."""

    max_tokens = 0
    output_name = ""

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        """Inputs with their dynamic axes."""
        return {"input_ids": dict(_DYNAMIC_TOKENS), "attention_mask": dict(_DYNAMIC_TOKENS)}

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        """The one output with its dynamic axis."""
        return {self.output_name: {0: "rows"}}


class ForwardPatcher(ModelPatcher):  # type: ignore[misc]
    """Puts another forward in the model's place while optimum traces it.

    Subclasses define :meth:`export_forward`. Optimum wraps whatever ``orig_forward`` is when it enters, so ours is set
    before and taken back after; the model's own forward is never touched.
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

    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        """Compute the contract's output from the contract's inputs."""
        raise NotImplementedError


def rotary_tables(
    module: Any, rotary: Any, max_tokens: int, name: str, *, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine tables of a rotary embedding as buffers of the module, so that they are stored once.

    Parameters
    ----------
    module : nn.Module
        Gets the buffers ``<name>_cos`` and ``<name>_sin`` (not saved with it).
    rotary : nn.Module
        The model's own rotary embedding; called as the model calls it.
    max_tokens : int
        Positions in the tables: a hard cap on the length of a row.
    name : str
    head_dim : int

    Returns
    -------
    (Tensor, Tensor)
        float32, shape (max_tokens, head_dim / 2): the model computes each half once and repeats it.
    """
    with torch.no_grad():
        probe = torch.zeros(1, 1, 1, dtype=torch.float32)  # only its dtype and device are read
        cos, sin = rotary(probe, torch.arange(max_tokens).unsqueeze(0))
    for suffix, table in (("cos", cos), ("sin", sin)):
        half = table[0, :, : head_dim // 2].contiguous().clone()
        module.register_buffer(f"{name}_{suffix}", half, persistent=False)
    return getattr(module, f"{name}_cos"), getattr(module, f"{name}_sin")
