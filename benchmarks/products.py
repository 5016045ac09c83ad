"""Single matrix products: the native library beside ONNX Runtime's own, each shape of both product models.

    python -m benchmarks.products [--rows 1,4,16,...] [--seconds 1.0] [--output DIR]

Both run in one process, taking turns, through ONNX Runtime's threads, with as many copies of each weight as make a set
larger than the caches: every product reads its weights from memory, as in a model. Figures are the fastest of the
turns. The share of the roofline is the time that the fastest product of this run and the fastest reading of weights of
this run would allow, over the time taken. Weights are random: nothing here says anything about quality.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from benchmarks.results import machine_record
from samevec.machine import allowed_cpus
from samevec.native.library import load_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Inner axis, columns, and stored type, as the two product models have them: q|k|v, output, gate|up and down.
SHAPES = (
    (1024, 4096, "bfloat16"),
    (2048, 1024, "bfloat16"),
    (1024, 6144, "bfloat16"),
    (3072, 1024, "bfloat16"),
    (768, 2304, "float32"),
    (768, 768, "float32"),
    (1152, 768, "float32"),
)
ROWS = (1, 4, 16, 64, 256, 1024, 2048)
_COLD_BYTES = 256 << 20  # larger than any last-level cache of a small machine
_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One shape, measured.

    Attributes
    ----------
    rows, inner, columns : int
    stored : str
        Type of the weights: ``"bfloat16"`` or ``"float32"``. ONNX Runtime's own product has float32 always.
    native_s, onnxruntime_s : float
        Seconds of the fastest turn.
    """

    rows: int
    inner: int
    columns: int
    stored: str
    native_s: float
    onnxruntime_s: float

    @property
    def flop(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.rows * self.inner * self.columns

    @property
    def weight_bytes(self) -> int:
        """As the native library reads them."""
        return self.inner * self.columns * _BYTES[self.stored]

    def roofline_share(self, flop_per_s: float, bytes_per_s: float) -> float:
        """Return which part of the attainable speed was reached."""
        return max(self.flop / flop_per_s, self.weight_bytes / bytes_per_s) / self.native_s


def _panels(weight: NDArray[np.float32], stored: str) -> NDArray[Any]:
    inner, columns = weight.shape
    if stored == "float32":
        return np.ascontiguousarray(weight.reshape(inner, columns // 32, 32).transpose(1, 0, 2))
    halves = (weight.view(np.uint32) >> 16).astype(np.uint16)
    pairs = halves.reshape(inner, columns // 32, 2, 16).transpose(1, 0, 3, 2)
    return np.ascontiguousarray(pairs).reshape(columns // 32, inner, 32)


def _session(nodes: Sequence[onnx.NodeProto], weights: Sequence[TensorProto], *, native: bool) -> Any:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes]
    graph = helper.make_graph(list(nodes), "product", inputs, outputs, list(weights))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("samevec", 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = allowed_cpus()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if native:
        options.register_custom_ops_library(str(load_library().path))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class _Pair:
    """Both sides of one shape: sessions with several copies of a weight, all of them run in each turn."""

    def __init__(self, inner: int, columns: int, stored: str) -> None:
        rng = np.random.default_rng(inner * columns)
        weight = rng.standard_normal((inner, columns), dtype=np.float32) / np.float32(inner**0.5)
        if stored == "bfloat16":
            weight = (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        copies = max(1, min(16, _COLD_BYTES // (inner * columns * 4)))
        panels = _panels(weight, stored)
        kind = TensorProto.BFLOAT16 if stored == "bfloat16" else TensorProto.FLOAT
        operator = "MatMulBf16" if stored == "bfloat16" else "MatMulF32"
        ours, theirs, our_weights, their_weights = [], [], [], []
        for i in range(copies):
            # Other values in each copy: ONNX Runtime keeps equal initialisers once and would read them from a cache.
            panels, weight = np.roll(panels, 32), np.roll(weight, 32)
            our_weights.append(TensorProto(name=f"w{i}", data_type=kind, dims=panels.shape, raw_data=panels.tobytes()))
            their_weights.append(onnx.numpy_helper.from_array(weight, f"w{i}"))
            ours.append(helper.make_node(operator, ["x", f"w{i}"], [f"y{i}"], domain="samevec", columns=columns))
            theirs.append(helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]))
        self.names = [f"y{i}" for i in range(copies)]
        self.native, self.stock = (
            _session(ours, our_weights, native=True),
            _session(theirs, their_weights, native=False),
        )

    def measure(self, rows: int, inner: int, seconds: float) -> tuple[float, float]:
        """Return the seconds of one product on each side: all copies in turn, over their number."""
        x = np.random.default_rng(rows).standard_normal((rows, inner), dtype=np.float32)
        best = [float("inf"), float("inf")]
        end_s = time.perf_counter() + seconds
        turns = 0
        while turns < 3 or time.perf_counter() < end_s:
            for side, session in enumerate((self.native, self.stock)):
                started_s = time.perf_counter()
                session.run(self.names, {"x": x})
                best[side] = min(best[side], (time.perf_counter() - started_s) / len(self.names))
            turns += 1
        return best[0], best[1]


def measure(rows: Sequence[int], seconds: float) -> list[Product]:
    """Measure every shape.

    Parameters
    ----------
    rows : sequence of int
    seconds : float
        Of each shape and number of rows.

    Returns
    -------
    list of Product
    """
    found = []
    for inner, columns, stored in SHAPES:
        pair = _Pair(inner, columns, stored)
        for n_rows in rows:
            native_s, stock_s = pair.measure(n_rows, inner, seconds)
            found.append(
                Product(
                    rows=n_rows, inner=inner, columns=columns, stored=stored, native_s=native_s, onnxruntime_s=stock_s
                )
            )
            print(f"{inner} x {columns} {stored}, {n_rows} rows: {stock_s / native_s:.2f}", file=sys.stderr, flush=True)
    return found


def table(products: Sequence[Product]) -> str:
    """Return a Markdown table: speeds, ratio to ONNX Runtime's product, share of the roofline."""
    flop_per_s = max(product.flop / product.native_s for product in products)
    bytes_per_s = max(product.weight_bytes / product.native_s for product in products)
    lines = [
        f"Best of this run: {flop_per_s / 1e9:,.0f} GFLOP/s, {bytes_per_s / 1e9:,.1f} GB/s of weights.\n",
        "| inner x columns | weights | rows | native GFLOP/s | ONNX Runtime GFLOP/s | ratio | of the roofline |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {p.inner} x {p.columns} | {p.stored} | {p.rows} | {p.flop / p.native_s / 1e9:,.0f} | "
        f"{p.flop / p.onnxruntime_s / 1e9:,.0f} | {p.onnxruntime_s / p.native_s:.2f} | "
        f"{p.roofline_share(flop_per_s, bytes_per_s):.0%} |"
        for p in products
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and write ``products.json`` and ``products.md``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__)
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each shape and number of rows (default: 1)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args(argv)
    products = measure(arguments.rows, arguments.seconds)
    machine = {**machine_record(), "instruction_set": load_library().instruction_set}
    record = {"machine": machine, "products": [asdict(product) for product in products]}
    (arguments.output / "products.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    text = f"{machine}\n\n{table(products)}"
    (arguments.output / "products.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
