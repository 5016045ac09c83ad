"""sentence-transformers: PyTorch float32, or its OpenVINO backend told to compute in float32."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.peers.loop import main

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Unset, OpenVINO computes in bfloat16 on processors that have it, which is outside every tolerance here.
_OV_CONFIG = {"INFERENCE_PRECISION_HINT": "f32"}


class SentenceTransformersPeer:
    """``SentenceTransformer.encode`` and ``CrossEncoder.predict``, as documented."""

    batch_size: int | None = 32
    padded_tokens = 0
    levels = ("raw", "final")
    _pipeline: Any
    _unnormalized: Any

    def prepare(self, request: dict[str, Any]) -> None:
        """Make a folder with OpenVINO's files beside the checkpoint's own."""
        if request["options"]["backend"] != "openvino":
            return
        target = Path(request["work"]) / "model"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(request["snapshot"], target)
        if request["task"] == "embed":
            _export_embedder(target)
        else:
            _convert_reranker(target)

    def load(self, request: dict[str, Any]) -> None:
        """Load in float32."""
        library = importlib.import_module("sentence_transformers")
        options, is_embedder = request["options"], request["task"] == "embed"
        self.batch_size = options["batch_size"]
        kind = library.SentenceTransformer if is_embedder else library.CrossEncoder
        if options["backend"] == "openvino":
            path = str(Path(request["work"]) / "model")
            arguments = {"backend": "openvino", "model_kwargs": {"ov_config": _OV_CONFIG}}
        else:
            path = request["snapshot"]
            arguments = {"model_kwargs": {"dtype": importlib.import_module("torch").float32}}
        if not is_embedder:
            arguments["max_length"] = options["max_tokens"]
        self._pipeline = kind(path, device="cpu", local_files_only=True, **arguments)
        self._pipeline.max_seq_length = options["max_tokens"]
        self._is_embedder = is_embedder
        if is_embedder:
            modules = [module for module in self._pipeline if type(module).__name__ != "Normalize"]
            self._unnormalized = library.SentenceTransformer(modules=modules, device="cpu")

    def raw(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return vectors before their ``Normalize`` module, or logits."""
        handle = self._pipeline[0].register_forward_pre_hook(self._count)
        try:
            if self._is_embedder:
                return self._encode(self._unnormalized, items)
            identity = importlib.import_module("torch").nn.Identity()
            return self._predict(items, activation_fn=identity)
        finally:
            handle.remove()

    def final(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return vectors or scores."""
        return self._encode(self._pipeline, items) if self._is_embedder else self._predict(items)

    def _encode(self, pipeline: Any, items: Sequence[Any]) -> NDArray[np.float32]:
        vectors = pipeline.encode(list(items), batch_size=self.batch_size, show_progress_bar=False)
        return cast("NDArray[np.float32]", vectors)

    def _predict(self, items: Sequence[Any], **arguments: Any) -> NDArray[np.float32]:
        scores = self._pipeline.predict(list(items), batch_size=self.batch_size, show_progress_bar=False, **arguments)
        return cast("NDArray[np.float32]", scores)

    def _count(self, _module: Any, arguments: tuple[Any, ...]) -> None:
        self.padded_tokens += int(np.prod(arguments[0]["input_ids"].shape))


def _export_embedder(target: Path) -> None:
    """Let optimum-intel export it, as sentence-transformers does on first use."""
    library = importlib.import_module("sentence_transformers")
    model = library.SentenceTransformer(str(target), device="cpu", backend="openvino", local_files_only=True)
    model.save_pretrained(str(target))
    _drop_weights(target)


def _convert_reranker(target: Path) -> None:
    """Convert by ``openvino.convert_model``: optimum-intel refuses to export ModernBERT."""
    openvino, torch = importlib.import_module("openvino"), importlib.import_module("torch")
    auto = importlib.import_module("transformers").AutoModelForSequenceClassification
    model = auto.from_pretrained(
        str(target), dtype=torch.float32, attn_implementation="sdpa", reference_compile=False, local_files_only=True
    ).eval()
    # One real length and one padded: a conversion from a full mask alone could leave the mask out.
    ids = torch.ones((2, 80), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 70:] = 0
    converted = openvino.convert_model(
        _logits_module(torch, model), example_input={"input_ids": ids, "attention_mask": mask}
    )
    converted.outputs[0].get_tensor().set_names({"logits"})
    (target / "openvino").mkdir(exist_ok=True)
    openvino.save_model(converted, target / "openvino" / "openvino_model.xml", compress_to_fp16=False)
    _drop_weights(target)


def _logits_module(torch: Any, model: Any) -> Any:
    """Wrap a model so that it returns the logits tensor alone."""

    class Logits(torch.nn.Module):  # type: ignore[misc]  # torch is not imported while types are checked
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]

    return Logits()


def _drop_weights(target: Path) -> None:
    for path in target.glob("*.safetensors"):
        path.unlink()  # the converted files hold them; loading must not fall back to these


if __name__ == "__main__":
    main(SentenceTransformersPeer())
