"""The toy pair through sentence-transformers: it loads cleanly, its values are healthy, what must matter matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_MAX_TOKENS, TOY_RERANKER, TOY_WIDTH, build_toy
from samevec.lock import load_lock

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.model,
    # transformers decorates a ModernBERT method with torch.compile, whose backend uses what torch deprecates.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

TEXTS = (
    "The capital of China is Beijing.",
    "Gravity is a force that attracts two bodies towards each other.",
    "hello",
    "a",
    "",
    "What is the capital of France?",
    "def quicksort(a): return a if len(a) < 2 else ...",
    "今日は天気がいいですね",
    "x" * 300,
    "The quick brown fox jumps over the lazy dog. " * 8,
)
QUERIES = ("what is the capital of China?", "how to implement quick sort in python?", "How heavy is the moon")
DOCUMENTS = ("Beijing", "Introduction of quick sort", "The weather is nice today", "x" * 40, "12345", TEXTS[9], "")
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]
# Longer than the window of 128 tokens, so that local and global layers differ.
LONG_PAIR = (QUERIES[0], TEXTS[9])


def extra(module: str) -> Any:
    return pytest.importorskip(module, reason="needs the export extra")


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toys")
    for name in (TOY_EMBEDDER, TOY_RERANKER):
        build_toy(name, directory / name)
    return directory


@pytest.fixture(scope="module")
def embedder(toys: Path) -> Any:
    return extra("sentence_transformers").SentenceTransformer(str(toys / TOY_EMBEDDER), device="cpu")


@pytest.fixture(scope="module")
def cross_encoder(toys: Path) -> Any:
    return extra("sentence_transformers").CrossEncoder(str(toys / TOY_RERANKER), device="cpu")


def load_eager(auto: str, folder: Path, **changes: Any) -> tuple[Any, dict[str, Any]]:
    return getattr(extra("transformers"), auto).from_pretrained(  # type: ignore[no-any-return]
        folder, attn_implementation="eager", output_loading_info=True, **changes
    )


def cosine(a: Any, b: Any) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def logit_deviations(attentions: Any, *, allowed: Any) -> list[float]:
    # log softmax differs from the attention logits by a constant a row, so their spread along a row is the same.
    spreads = []
    for layer in attentions:
        probabilities = np.where(allowed & (layer.numpy() > 0), layer.numpy(), np.nan)
        spreads.append(float(np.nanmean(np.nanstd(np.log(probabilities[..., 40:, :]), axis=-1))))
    return spreads


@pytest.mark.parametrize(
    ("auto", "name"), [("AutoModel", TOY_EMBEDDER), ("AutoModelForSequenceClassification", TOY_RERANKER)]
)
def test_every_weight_has_its_place(auto: str, name: str, toys: Path) -> None:
    _, info = load_eager(auto, toys / name)
    assert {key: list(value) for key, value in info.items()} == {key: [] for key in info}


@pytest.mark.parametrize("name", [TOY_EMBEDDER, TOY_RERANKER])
def test_ids_are_transformers_ids(name: str, toys: Path) -> None:
    theirs = extra("transformers").AutoTokenizer.from_pretrained(toys / name)
    ours = Tokenizer.from_file(str(toys / name / "tokenizer.json"))
    ours.no_padding()
    ours.no_truncation()
    assert theirs.model_max_length == TOY_MAX_TOKENS
    for text in (*TEXTS, "<|im_end|> [SEP] e\u0301", "  a\n\n b "):
        assert theirs(text)["input_ids"] == ours.encode(text).ids
        # As lists, which is what CrossEncoder passes: called with two strings, transformers drops an empty second one.
        assert theirs([QUERIES[0]], [text])["input_ids"][0] == ours.encode(QUERIES[0], text).ids
    assert list(theirs("a", "b")) == ["input_ids", "attention_mask"]


def test_embedder_settings(embedder: Any) -> None:
    assert [type(module).__name__ for module in embedder] == ["Transformer", "Pooling", "Normalize"]
    assert embedder.max_seq_length == TOY_MAX_TOKENS
    assert embedder.prompts == dict(load_lock("toy").model(TOY_EMBEDDER).prompts)
    assert embedder.encode("a").shape == (TOY_WIDTH,)


def test_embedder_golden_cosines(embedder: Any) -> None:
    lock = load_lock("toy")
    golden = lock.model(TOY_EMBEDDER).golden.cosines
    assert golden is not None
    queries = embedder.encode(list(golden.queries), prompt_name=golden.prompt, batch_size=1)
    found = queries @ embedder.encode(list(golden.documents), batch_size=1).T
    np.testing.assert_allclose(found, golden.values, atol=lock.tolerance.atol, rtol=lock.tolerance.rtol)


def test_embeddings_of_different_texts_differ(embedder: Any) -> None:
    vectors = embedder.encode(list(TEXTS), batch_size=1)
    cosines = (vectors @ vectors.T)[np.triu_indices(len(TEXTS), 1)]
    assert cosines.max() < 0.95
    assert np.median(cosines) < 0.5
    assert cosine(*embedder.encode(["abc def ghi", "ghi def abc"], batch_size=1)) < 0.9  # the rotary positions


def test_embedder_activations_and_causal_mask(toys: Path) -> None:
    torch, auto_tokenizer = extra("torch"), extra("transformers").AutoTokenizer

    model, _ = load_eager("AutoModel", toys / TOY_EMBEDDER)
    ids = auto_tokenizer.from_pretrained(toys / TOY_EMBEDDER)(TEXTS[9], return_tensors="pt")["input_ids"]
    n_tokens = ids.shape[1]
    with torch.no_grad():
        causal = model(input_ids=ids, output_hidden_states=True, output_attentions=True)
        open_mask = torch.zeros(1, 1, n_tokens, n_tokens)
        uncausal = model(input_ids=ids, attention_mask=open_mask).last_hidden_state[0].numpy()
    rms = [float(state.pow(2).mean().sqrt()) for state in causal.hidden_states]
    assert all(0.01 < value < 10 for value in rms), rms
    deviations = logit_deviations(causal.attentions, allowed=np.tril(np.ones((n_tokens, n_tokens), dtype=bool)))
    assert all(0.6 < value < 2 for value in deviations), deviations
    vectors = causal.last_hidden_state[0].numpy()
    assert cosine(vectors[-1], uncausal[-1]) < 0.99
    assert cosine(vectors[0], uncausal[0]) < 0.5


def test_cross_encoder_settings(cross_encoder: Any) -> None:
    assert type(cross_encoder.activation_fn).__name__ == "Sigmoid"
    assert cross_encoder.max_seq_length == TOY_MAX_TOKENS
    assert cross_encoder.num_labels == 1


def test_cross_encoder_golden_pairs(cross_encoder: Any) -> None:
    torch = extra("torch")
    lock = load_lock("toy")
    golden = lock.model(TOY_RERANKER).golden.pairs
    pairs = [(pair.query, pair.document) for pair in golden]
    logits = cross_encoder.predict(pairs, batch_size=1, activation_fn=torch.nn.Identity())
    scores = cross_encoder.predict(pairs, batch_size=1)
    atol, rtol = lock.tolerance.atol, lock.tolerance.rtol
    np.testing.assert_allclose(logits, [pair.logit for pair in golden], atol=atol, rtol=rtol)
    np.testing.assert_allclose(scores, [pair.score for pair in golden], atol=atol, rtol=rtol)


def test_logits_spread(cross_encoder: Any) -> None:
    torch = extra("torch")
    logits = cross_encoder.predict(PAIRS, batch_size=1, activation_fn=torch.nn.Identity())
    assert -6 < logits.min() < -1.5
    assert 1.5 < logits.max() < 6
    assert len(np.unique(logits.round(2))) > 0.8 * len(PAIRS)


def test_reranker_activations_windows_and_mask(toys: Path) -> None:
    torch, auto_tokenizer = extra("torch"), extra("transformers").AutoTokenizer

    folder, auto = toys / TOY_RERANKER, "AutoModelForSequenceClassification"
    tokenizer, (model, _) = auto_tokenizer.from_pretrained(folder), load_eager(auto, folder)
    features = tokenizer(*LONG_PAIR, return_tensors="pt")
    padded = tokenizer([PAIRS[0], LONG_PAIR], padding=True, return_tensors="pt")
    changes: list[dict[str, Any]] = [
        {"local_attention": 4096},
        {"global_rope_theta": 1e4},
        {"classifier_pooling": "cls"},
    ]
    with torch.no_grad():
        states = model.model(**features, output_hidden_states=True, output_attentions=True)
        logit = float(model(**features).logits)
        changed = [abs(float(load_eager(auto, folder, **change)[0](**features).logits) - logit) for change in changes]
        masked = float(model(**padded).logits[0])
        unmasked = float(
            model(input_ids=padded["input_ids"], attention_mask=torch.ones_like(padded["input_ids"])).logits[0]
        )
    rms = [float(state.pow(2).mean().sqrt()) for state in states.hidden_states]
    assert all(0.1 < value < 10 for value in rms), rms
    deviations = logit_deviations(states.attentions, allowed=np.True_)
    assert all(0.6 < value < 2 for value in deviations), deviations
    assert all(value > 0.05 for value in changed), changed
    assert abs(masked - unmasked) > 0.5
