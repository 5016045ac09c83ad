"""What one session run costs, by constants measured on whole models; plans are compared by nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["COSTS", "GPU_COSTS", "NATIVE_COSTS", "CostModel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Seconds and bytes of one session run.

    Only ratios of the seconds matter to a plan, and those change far less from machine to machine than the seconds.

    Attributes
    ----------
    per_run_s : float
        What every run costs beside its arithmetic.
    stream_s : float
        Reading every weight once: the least that the linear layers take, however few the tokens.
    per_token_s : float
        Linear layers and all else that grows with the padded tokens.
    per_token_squared_s : float
        Attention: of one row, times the square of its padded length.
    bytes_per_token : int
        Memory a run takes beside the weights, by padded token; 0 where it is not known.
    full_tokens : int or None
        Padded tokens at which a run is as fast a token as it gets; larger ones only take longer, and memory. None where
        the largest run is the fastest.
    beyond_full_s : float
        What every padded token beyond `full_tokens` costs in addition.
    pads : bool
        Padding is computed. A graph that takes it out first gains nothing from a cut that avoids padding: its plans
        fill runs up to `full_tokens`.
    """

    per_run_s: float = 0.0
    stream_s: float = 0.0
    per_token_s: float = 0.0
    per_token_squared_s: float = 0.0
    bytes_per_token: int = 0
    full_tokens: int | None = None
    beyond_full_s: float = 0.0
    pads: bool = True

    def run_s(self, n_rows: Any, n_tokens: Any) -> Any:
        """Return the seconds of a run.

        Parameters
        ----------
        n_rows, n_tokens : int or ndarray of int
            Rows, and the length to which they are padded.

        Returns
        -------
        float or ndarray of float64
            ``per_run + max(stream, per_token * rows * tokens) + per_token_squared * rows * tokens**2``, and
            ``beyond_full * (rows * tokens - full)`` where that is positive.
        """
        padded = np.multiply(n_rows, n_tokens)
        linear_s = np.maximum(self.stream_s, self.per_token_s * padded)
        if self.full_tokens is not None:
            linear_s = linear_s + self.beyond_full_s * np.maximum(padded - self.full_tokens, 0)
        return self.per_run_s + linear_s + self.per_token_squared_s * padded * n_tokens


#: By task, where padding is computed: 2 cores with AVX-512, graphs of ONNX Runtime's own operators. `per_token_s` and
#: `per_token_squared_s` are fits to its shape tables, good to 8% at 8 x 64, 1 x 1,024, 1 x 2,048 and 1 x 4,096. (Its
#: ceiling, 0.88 and 0.22 GFLOP a token at 450 GFLOP/s, would be 1.96 and 0.49 ms.) `per_run_s + stream_s` is what a
#: query of 16 tokens takes, 79 to 84 and 27 ms; of that, streaming 1.76 and 0.44 GB at 25 GB/s explains up to 70 and
#: 17 ms, and some of it overlaps with the arithmetic of longer runs but never all.
#: Beyond 800 tokens a run loses to its own activations (two side by side, S = 200, tokens/s at 800, 1,600 and 3,200
#: padded tokens: embedder 431, 408, 368; reranker 1,702, 1,543, 1,440; 704 x 1, 2, 5: 1,557, 1,459, 1,268).
COSTS: Mapping[str, CostModel] = MappingProxyType(
    {
        "embed": CostModel(
            per_run_s=0.020,
            stream_s=0.060,
            per_token_s=2.1e-3,
            per_token_squared_s=3.5e-7,
            bytes_per_token=71_000,
            full_tokens=800,
            beyond_full_s=0.4e-3,
        ),
        "rerank": CostModel(
            per_run_s=0.008,
            stream_s=0.018,
            per_token_s=0.62e-3,
            per_token_squared_s=0.95e-7,
            bytes_per_token=72_000,
            full_tokens=800,
            beyond_full_s=0.13e-3,
        ),
    }
)

#: Under `cpu`, whose graphs take padding out before the first product: by task, AMD EPYC (Zen 4, AVX-512), 2 cores;
#: docs/measurements.md has the seconds. A run of 64 rows of 64 tokens takes 0.4% more a token than one of 8 rows, and
#: more memory, so that runs end at 800 tokens; bytes are the private memory of a run of 4,096 tokens.
NATIVE_COSTS: Mapping[str, CostModel] = MappingProxyType(
    {
        "embed": CostModel(pads=False, full_tokens=800, bytes_per_token=73_000),
        "rerank": CostModel(pads=False, full_tokens=800, bytes_per_token=45_000),
    }
)

#: On a GPU, from data sheets and not measured: 60 TFLOP/s of float32 without TF32, 4 TB/s, and some 500 kernels a run
#: at 8 microseconds. What matters is that a run costs as much as about 200 tokens, so that padding is cheaper than
#: another run. 0 bytes a token: the device's memory is bounded by its arena, not by what the host has left.
GPU_COSTS: Mapping[str, CostModel] = MappingProxyType(
    {
        "embed": CostModel(per_run_s=4e-3, stream_s=4.5e-4, per_token_s=1.5e-5, per_token_squared_s=4e-9),
        "rerank": CostModel(per_run_s=3e-3, stream_s=1.5e-4, per_token_s=4e-6, per_token_squared_s=2e-9),
    }
)
