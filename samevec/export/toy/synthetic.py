"""Seeded weights for a given configuration: tensor tables and a safetensors writer, with numpy alone.

For the toy pair and the full-shape checkpoints of the benchmarks. Values are integers from a PCG64 stream times a power
of two, so that the bytes are the same everywhere; ``PCG64.random_raw`` because numpy promises a stable stream for bit
generators only (NEP 19).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["TensorSpec", "bert_tensors", "modernbert_tensors", "qwen3_tensors", "write_tensors"]

# 16 MiB of float32 at a time: a checkpoint of gigabytes is written in the memory of a small one.
_CHUNK_VALUES = 1 << 22
_DTYPE_BYTES = {"BF16": 2, "F32": 4, "I64": 8}
_Dtype = Literal["BF16", "F32", "I64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One tensor to write: uniform in ``[centre - 2**exponent, centre + 2**exponent)``.

    Dtypes are named as in safetensors. BF16 holds 8-bit integers and F32 16-bit integers, so that a silent cast of
    float32 weights shows; I64 counts from 0, as old checkpoints store positions.
    """

    name: str
    shape: tuple[int, ...]
    dtype: _Dtype
    exponent: int = 0
    centre: float = 0.0

    @property
    def n_values(self) -> int:
        """Number of parameters."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return self.n_values * _DTYPE_BYTES[self.dtype]


def _exponent(fan_in: int, boost: int = 0) -> int:
    # About 2 / sqrt(fan_in) for boost 1: an output of a unit-RMS input then has an RMS between 0.8 and 1.4.
    return boost - fan_in.bit_length() // 2


def qwen3_tensors(config: Mapping[str, Any], *, boosts: Mapping[str, int] | None = None) -> list[TensorSpec]:
    """Return the tensors of a Qwen3 text encoder, sorted by name, as in checkpoints: no prefix, no ``lm_head``.

    `config` is the checkpoint's ``config.json``. `boosts` has powers of two by which tensors are scaled up, by the last
    one or two parts of a name, such as ``{"o_proj": 1, "mlp.Wo": 1}``.
    """
    extra = dict(boosts or {})
    hidden, head, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    q_width, kv_width = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    matrices = {
        "self_attn.q_proj": (q_width, hidden),
        "self_attn.k_proj": (kv_width, hidden),
        "self_attn.v_proj": (kv_width, hidden),
        "self_attn.o_proj": (hidden, q_width),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    norms |= {"self_attn.q_norm": head, "self_attn.k_norm": head}
    embedding = _matrix("embed_tokens", (config["vocab_size"], hidden), "BF16", _boost("embed_tokens", extra))
    specs = [embedding, _norm("norm", hidden, "BF16")]
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}."
        specs += [_matrix(at + name, shape, "BF16", _boost(name, extra)) for name, shape in matrices.items()]
        specs += [_norm(at + name, width, "BF16") for name, width in norms.items()]
    return sorted(specs, key=lambda spec: spec.name)


def modernbert_tensors(
    config: Mapping[str, Any], *, boosts: Mapping[str, int] | None = None, bias: float = 0.0
) -> list[TensorSpec]:
    """Return the tensors of a ModernBERT one-label classifier, sorted by name; layer 0 has no ``attn_norm``.

    `bias` is the centre of the classifier's bias; `config` and `boosts` are as for :func:`qwen3_tensors`.
    """
    extra = dict(boosts or {})
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    matrices = {"attn.Wqkv": (3 * hidden, hidden), "attn.Wo": (hidden, hidden)}
    matrices |= {"mlp.Wi": (2 * inner, hidden), "mlp.Wo": (hidden, inner)}
    outer = {"model.embeddings.tok_embeddings": (config["vocab_size"], hidden)}
    outer |= {"head.dense": (hidden, hidden), "classifier": (1, hidden)}
    specs = [_matrix(name, shape, "F32", _boost(name, extra)) for name, shape in outer.items()]
    specs += [_norm(name, hidden, "F32") for name in ("model.embeddings.norm", "model.final_norm", "head.norm")]
    specs.append(TensorSpec(name="classifier.bias", shape=(1,), dtype="F32", exponent=-2, centre=bias))
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        specs += [_matrix(at + name, shape, "F32", _boost(name, extra)) for name, shape in matrices.items()]
        specs += [_norm(at + name, hidden, "F32") for name in ("attn_norm", "mlp_norm") if layer or name == "mlp_norm"]
    return sorted(specs, key=lambda spec: spec.name)


def bert_tensors(config: Mapping[str, Any], *, boosts: Mapping[str, int] | None = None) -> list[TensorSpec]:
    """Return the tensors of a BERT sequence classifier with one label: the stored positions, then the others by name.

    `config` and `boosts` are as for :func:`qwen3_tensors`.
    """
    extra = dict(boosts or {})
    hidden, inner, positions = config["hidden_size"], config["intermediate_size"], config["max_position_embeddings"]
    tables = {"word_embeddings": config["vocab_size"], "position_embeddings": positions}
    tables |= {"token_type_embeddings": config["type_vocab_size"]}
    layers = {f"attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
    layers |= {"attention.output.dense": (hidden, hidden)}
    layers |= {"intermediate.dense": (inner, hidden), "output.dense": (hidden, inner)}
    at = "bert.embeddings."
    specs = [_matrix(at + name, (size, hidden), "F32", _boost(name, extra)) for name, size in tables.items()]
    specs += _norm_with_bias(at + "LayerNorm", hidden)
    specs += _linear("bert.pooler.dense", (hidden, hidden), extra) + _linear("classifier", (1, hidden), extra)
    for layer in range(config["num_hidden_layers"]):
        at = f"bert.encoder.layer.{layer}."
        for name, shape in layers.items():
            specs += _linear(at + name, shape, extra)
        specs += _norm_with_bias(at + "attention.output.LayerNorm", hidden)
        specs += _norm_with_bias(at + "output.LayerNorm", hidden)
    counted = TensorSpec(name="bert.embeddings.position_ids", shape=(1, positions), dtype="I64")
    return [counted, *sorted(specs, key=lambda spec: spec.name)]


def _linear(name: str, shape: tuple[int, int], boosts: Mapping[str, int]) -> list[TensorSpec]:
    bias = TensorSpec(name=f"{name}.bias", shape=shape[:1], dtype="F32", exponent=-4)
    return [_matrix(name, shape, "F32", _boost(".".join(name.split(".")[-2:]), boosts)), bias]


def _norm_with_bias(name: str, width: int) -> list[TensorSpec]:
    return [_norm(name, width, "F32"), TensorSpec(name=f"{name}.bias", shape=(width,), dtype="F32", exponent=-4)]


def _boost(name: str, boosts: Mapping[str, int]) -> int:
    return boosts.get(name, boosts.get(name.rpartition(".")[2], 0))


def _matrix(name: str, shape: tuple[int, int], dtype: _Dtype, boost: int) -> TensorSpec:
    return TensorSpec(name=f"{name}.weight", shape=shape, dtype=dtype, exponent=_exponent(shape[1], boost))


def _norm(name: str, width: int, dtype: _Dtype) -> TensorSpec:
    # Near 1 but not all equal, so that a norm dropped or applied twice changes the output.
    return TensorSpec(name=f"{name}.weight", shape=(width,), dtype=dtype, exponent=-2, centre=1.0)


def write_tensors(
    path: Path, specs: Sequence[TensorSpec], *, seed: int, on_bytes: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """Write a safetensors file of seeded tensors in chunks, in the order of `specs`; return its size and sha256.

    Same seed (of the PCG64 stream) and specs, same bytes. `on_bytes` gets the number of bytes written since the last
    call.
    """
    digest, size_bytes = hashlib.sha256(), 0
    stream = np.random.PCG64(seed)
    with path.open("wb") as file:
        for chunk in _file_chunks(specs, stream):
            file.write(chunk)
            digest.update(chunk)
            size_bytes += len(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return size_bytes, digest.hexdigest()


def _file_chunks(specs: Sequence[TensorSpec], stream: np.random.PCG64) -> Iterator[bytes]:
    yield _header(specs)
    for spec in specs:
        for start in range(0, spec.n_values, _CHUNK_VALUES):
            yield _values(spec, stream, min(_CHUNK_VALUES, spec.n_values - start)).tobytes()


def _header(specs: Sequence[TensorSpec]) -> bytes:
    # Format: 8 bytes little-endian length, JSON, data. Spaces bring the data to an 8-byte boundary, as the reference
    # writer does. https://github.com/huggingface/safetensors#format
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        offsets = [offset, offset + spec.size_bytes]
        table[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _values(
    spec: TensorSpec, stream: np.random.PCG64, n_values: int
) -> NDArray[np.uint16] | NDArray[np.float32] | NDArray[np.int64]:
    if spec.dtype == "I64":
        return np.arange(n_values, dtype="<i8")
    n_bits = 8 if spec.dtype == "BF16" else 16
    words = np.asarray(stream.random_raw(-(-n_values * n_bits // 64)), dtype="<u8")
    step = np.float32(2.0 ** (spec.exponent - n_bits + 1))
    if spec.dtype == "F32":
        integers = words.view("<i2")[:n_values].astype(np.float32)
        return (integers * step + np.float32(spec.centre)).astype("<f4", copy=False)
    # All 256 possible values once, then a look-up. Dropping the low half of a float32 is bfloat16 rounded towards zero,
    # and exact wherever the centre is 0.
    table = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32) * step + np.float32(spec.centre)
    bits: NDArray[np.uint16] = (table.view(np.uint32) >> np.uint32(16)).astype("<u2")
    return bits[words.view(np.uint8)[:n_values]]
