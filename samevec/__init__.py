"""Pinned embedding and reranking checkpoints as ONNX, proved equal to PyTorch on the machine that serves them."""

from samevec._version import __version__
from samevec.load import load_embedder, load_reranker
from samevec.runtime.embedder import Embedder
from samevec.runtime.reranker import Ranked, Reranker
from samevec.settings import silence_onnxruntime

__all__ = ["Embedder", "Ranked", "Reranker", "__version__", "load_embedder", "load_reranker"]

silence_onnxruntime()  # before anything imports onnxruntime
