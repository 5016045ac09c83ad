"""What this machine can do at most: float32 matrix products through ONNX Runtime, measured in the same run."""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from samevec.machine import allowed_cpus

__all__ = ["GFLOP_PER_TOKEN", "ceiling_fraction", "measure_ceiling"]

#: Linear layers alone, 2 x weights: 440 M weights of the embedder, 110 M of the reranker.
GFLOP_PER_TOKEN = {"embed": 0.88, "rerank": 0.22}
# Rows, inner and columns, of the models' own order of size; the best median is the ceiling: what is sustained,
# not what once was lucky.
_SHAPES = ((512, 1024, 3072), (1024, 1024, 3072), (1024, 2048, 4096))
_RUNS = 60


def ceiling_fraction(useful_tokens_per_s: float, task: str, ceiling_gflops: float) -> float:
    """Return which part of the matrix-product ceiling the useful work of linear layers reached.

    Parameters
    ----------
    useful_tokens_per_s : float
        Padding not counted.
    task : str
        ``"embed"`` or ``"rerank"``.
    ceiling_gflops : float

    Returns
    -------
    float
        1 would be every multiplication useful and at full speed, with attention and all else for nothing.
    """
    return useful_tokens_per_s * GFLOP_PER_TOKEN[task] / ceiling_gflops


def measure_ceiling() -> float:
    """Return GFLOP/s of float32 products, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ceiling"]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(finished.stdout)["gflops"])


def _session(inner: int, columns: int) -> Any:
    onnx, ort = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.random.default_rng(0).standard_normal((inner, columns), dtype=np.float32)
    graph = make.make_graph(
        [make.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [make.make_tensor_value_info("x", kind, ["rows", inner])],
        [make.make_tensor_value_info("y", kind, ["rows", columns])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = allowed_cpus()
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _product_gflops(rows: int, inner: int, columns: int) -> float:
    session = _session(inner, columns)
    feed = {"x": np.random.default_rng(1).standard_normal((rows, inner), dtype=np.float32)}
    walls = []
    for _ in range(_RUNS + 3):
        started_s = time.perf_counter()
        session.run(None, feed)
        walls.append(time.perf_counter() - started_s)
    return 2e-9 * rows * inner * columns / statistics.median(walls[3:])


if __name__ == "__main__":
    print(json.dumps({"gflops": max(_product_gflops(*shape) for shape in _SHAPES)}))
