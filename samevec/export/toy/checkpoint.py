"""The toy pair: two tiny checkpoints of the real architectures, for the demo and the tests, byte-identical everywhere.

Their weights are random and their answers mean nothing. :mod:`samevec.export.toy.lock` writes the lock that pins them.
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

from samevec.errors import SourceMissingError
from samevec.export.toy.synthetic import modernbert_tensors, qwen3_tensors, write_tensors

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TOY_EMBEDDER", "TOY_MAX_TOKENS", "TOY_QUERY_PROMPT", "TOY_RERANKER", "TOY_WIDTH", "build_toy", "byte_ids"]

TOY_EMBEDDER = "toy-qwen3-embedder"
TOY_RERANKER = "toy-modernbert-reranker"

TOY_MAX_TOKENS = 2048
TOY_WIDTH = 384
_N_BYTES = 256
# The real pre-tokenizer. Without merges it changes no id; it is kept so that the files have the same parts.
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END, _IM_START, _IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# The real model's prompt.
TOY_QUERY_PROMPT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

_EMBEDDER_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": _N_BYTES,
    "eos_token_id": _N_BYTES,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": TOY_WIDTH,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": TOY_MAX_TOKENS,
    "max_window_layers": 3,
    "model_type": "qwen3",
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.3",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": _N_BYTES + 3,
}

_RERANKER_CONFIG: dict[str, Any] = {
    "architectures": ["ModernBertForSequenceClassification"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": _N_BYTES + 1,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": _N_BYTES + 1,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": _N_BYTES + 2,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 256,
    "id2label": {"0": "LABEL_0"},
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 384,
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": TOY_MAX_TOKENS,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 4,
    "num_hidden_layers": 5,
    "pad_token_id": _N_BYTES + 3,
    "position_embedding_type": "absolute",
    # The real configuration does not set it and lets transformers choose; torch.compile on a model this small would
    # cost a minute and change nothing.
    "reference_compile": False,
    "sep_token_id": _N_BYTES + 2,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "torch_dtype": "float32",
    "transformers_version": "4.48.0.dev0",
    "vocab_size": _N_BYTES + 5,
}

# Chosen by measuring (tests/model/test_toy_reference.py states the bounds): attention logits with a deviation near 1,
# residual streams of moderate size, and outputs that differ between texts.
_EMBEDDER_BOOSTS = {"o_proj": 1}
_RERANKER_BOOSTS = {"attn.Wqkv": 1, "attn.Wo": 1, "classifier": 3}
_RERANKER_BIAS = -1.5
_EMBEDDER_SEED, _RERANKER_SEED = 20250607, 20250608


def build_toy(name: str, directory: Path) -> None:
    """Write the complete snapshot folder of a toy model; SourceMissingError if the package builds none of this name.

    The bytes are the same on every machine; files of the same names are replaced.
    """
    builders = {TOY_EMBEDDER: _build_embedder, TOY_RERANKER: _build_reranker}
    if name not in builders:
        raise SourceMissingError(directory / name, f"the package builds only {' and '.join(builders)}")
    directory.mkdir(parents=True, exist_ok=True)
    builders[name](directory)


def byte_ids(text: str) -> list[int]:
    """Return the token ids both toy tokenizers give a text, special tokens aside: one a UTF-8 byte of its NFC form."""
    ids = {byte: index for index, byte in enumerate(_byte_order())}
    return [ids[byte] for byte in unicodedata.normalize("NFC", text).encode("utf-8")]


def _build_embedder(directory: Path) -> None:
    specials = (_END, _IM_START, _IM_END)
    end = {"SpecialToken": {"id": _END, "type_id": 0}}
    template = _template([_sequence("A"), end], [_sequence("A"), _sequence("B"), end], {_END: _N_BYTES})
    split = {"type": "Split", "pattern": {"Regex": _QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    byte_level = _byte_level(trim_offsets=False, use_regex=False)
    tokenizer = _tokenizer(specials) | {
        "decoder": byte_level,
        "post_processor": {"type": "Sequence", "processors": [byte_level, template]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
    }
    tokenizer_config = _tokenizer_config(specials) | {"eos_token": _IM_END, "pad_token": _END, "unk_token": None}
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling: dict[str, Any] = {f"pooling_mode_{mode}": mode == "lasttoken" for mode in modes}
    pooling |= {"include_prompt": True, "word_embedding_dimension": TOY_WIDTH}
    prompts = {"query": TOY_QUERY_PROMPT, "document": ""}
    _write_json(directory / "config.json", _EMBEDDER_CONFIG)
    _write_json(directory / "tokenizer.json", tokenizer)
    _write_json(directory / "tokenizer_config.json", tokenizer_config)
    _write_json(directory / "modules.json", _modules())
    _write_json(directory / "1_Pooling" / "config.json", pooling)
    _write_json(
        directory / "config_sentence_transformers.json",
        {"default_prompt_name": None, "prompts": prompts, "similarity_fn_name": "cosine"},
    )
    specs = qwen3_tensors(_EMBEDDER_CONFIG, boosts=_EMBEDDER_BOOSTS)
    write_tensors(directory / "model.safetensors", specs, seed=_EMBEDDER_SEED)


def _build_reranker(directory: Path) -> None:
    specials = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    ids = {token: _N_BYTES + index for index, token in enumerate(specials)}
    cls, sep = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]"))
    byte_level = _byte_level(trim_offsets=True, use_regex=True)
    # Fixed padding and a cut stand in the real file too (8000 tokens each): a runtime that does not reset them pads
    # every pair, and these 64 tokens make that visible in every test.
    tokenizer = _tokenizer(specials) | {
        "decoder": byte_level,
        "padding": {
            "direction": "Right",
            "pad_id": ids["[PAD]"],
            "pad_to_multiple_of": None,
            "pad_token": "[PAD]",
            "pad_type_id": 0,
            "strategy": {"Fixed": 64},
        },
        "post_processor": _template([cls, _sequence("A"), sep], [cls, _sequence("A"), sep, _sequence("B"), sep], ids),
        "pre_tokenizer": byte_level,
        "truncation": {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 0},
    }
    roles = {"cls": "[CLS]", "mask": "[MASK]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]"}
    tokenizer_config = _tokenizer_config(specials) | {f"{role}_token": token for role, token in roles.items()}
    _write_json(directory / "config.json", _RERANKER_CONFIG)
    _write_json(directory / "tokenizer.json", tokenizer)
    _write_json(directory / "tokenizer_config.json", tokenizer_config)
    specs = modernbert_tensors(_RERANKER_CONFIG, boosts=_RERANKER_BOOSTS, bias=_RERANKER_BIAS)
    write_tensors(directory / "model.safetensors", specs, seed=_RERANKER_SEED)


def _byte_order() -> list[int]:
    # Bytes in the order of their ids: the printable ones first, as in GPT-2's bytes_to_unicode.
    # https://github.com/openai/gpt-2/blob/9b63575ef42771a015060c964af2c3da4cf7c8ab/src/encoder.py#L9
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return printable + [byte for byte in range(_N_BYTES) if byte not in printable]


def _byte_symbols() -> list[str]:
    # A byte that is not printable stands as a letter beyond 255: the table every ByteLevel component uses.
    order = _byte_order()
    n_printable = order.index(0)
    return [chr(byte) for byte in order[:n_printable]] + [chr(_N_BYTES + i) for i in range(_N_BYTES - n_printable)]


def _added_token(content: str) -> dict[str, Any]:
    flags: dict[str, Any] = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": content, **flags, "special": True}


def _tokenizer(specials: tuple[str, ...]) -> dict[str, Any]:
    vocabulary = {symbol: index for index, symbol in enumerate(_byte_symbols())}
    return {
        "added_tokens": [{"id": _N_BYTES + index, **_added_token(token)} for index, token in enumerate(specials)],
        "model": {
            "byte_fallback": False,
            "continuing_subword_prefix": None,
            "dropout": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "ignore_merges": False,
            "merges": [],
            "type": "BPE",
            "unk_token": None,
            "vocab": vocabulary,
        },
        "normalizer": {"type": "NFC"},
        "padding": None,
        "truncation": None,
        "version": "1.0",
    }


def _tokenizer_config(specials: tuple[str, ...]) -> dict[str, Any]:
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(_N_BYTES + index): _added_token(token) for index, token in enumerate(specials)},
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": {},
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": TOY_MAX_TOKENS,
        "padding_side": "right",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "truncation_side": "right",
    }


def _byte_level(*, trim_offsets: bool, use_regex: bool) -> dict[str, Any]:
    return {"add_prefix_space": False, "trim_offsets": trim_offsets, "type": "ByteLevel", "use_regex": use_regex}


def _sequence(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}


def _template(single: list[dict[str, Any]], pair: list[dict[str, Any]], ids: dict[str, int]) -> dict[str, Any]:
    special_tokens = {token: {"id": token, "ids": [index], "tokens": [token]} for token, index in ids.items()}
    return {"pair": pair, "single": single, "special_tokens": special_tokens, "type": "TemplateProcessing"}


def _modules() -> list[dict[str, Any]]:
    # As in the real repository, 2_Normalize is named and has no folder: it has nothing to configure.
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    return [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]


def _write_json(path: Path, record: Any) -> None:
    text = json.dumps(record, sort_keys=True, indent=2, separators=(",", ": "), ensure_ascii=True, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("ascii") + b"\n")
