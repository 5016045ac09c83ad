"""The benchmark's workloads: exact token counts under the real tokenizers, and the same items everywhere."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.measure import tuning_sample
from benchmarks.workloads import EMBEDDER, RERANKER, WORKLOADS, Writer, make_workload
from samevec.settings import default_snapshots

REPO = Path(__file__).resolve().parents[3]

# Digests pin every item: a change here makes results incomparable with earlier ones.
DIGESTS = {
    "mixed64": "sha256:36bb83f32a20ab05423deb8eadaebafc5a67a3d49361f0e8de0735aff9be181f",
    "query16": "sha256:4b766e24d7e3f78bda717162b2d340818dd10b593b1429f63dd9060e53bcf6a6",
    "text2048": "sha256:b8568ac741f92f8b5c2c88d2901fa2033ee889a1b7d9d18e8a10c3aa786129f5",
    "text4096": "sha256:86d94c044fd4bcd5c3b4bf3ab0f3385091e98e8a7becab093e526a1bb3063dfd",
    "pairs50": "sha256:6d121748d7956c976aeaa78d0c57089dcb6ba4c11f8c65050dfebc5d5a52bcca",
    "pairs100": "sha256:5ad87ac4ef2f4bcb14e462ec198f499baac7eed7f5320aaa86b7176b3f9de7a7",
    "pair16": "sha256:9acfb39602ccaae19b381e4521158d2365c4ef36f3fea37fad945caf50cfc1da",
    "short2000": "sha256:4b34a90d6cb9f9a0053d9ae0eeb0c1695c63e5ab8e5c1e729bc879cbb59124c8",
    "texts4x1024": "sha256:6900a587e1f030a94a109f4e837d1f7177869439755ba5a491bca886e7ba5cc9",
    "pair4096": "sha256:07cd5ec201ae7942c0b48a70b9d836e04a7e93067340e6e7e082ab7f02e9bb90",
    "pairs4x1024": "sha256:75ca904162fb5f80c1c3b790003e32d51f2c2ad6936048f04218f20a09ed9423",
}
ITEMS_TOKENS = {
    "mixed64": (64, 4039),
    "query16": (1, 16),
    "text2048": (1, 2048),
    "text4096": (1, 4096),
    "pairs50": (50, 8800),
    "pairs100": (100, 47128),
    "pair16": (1, 16),
    "short2000": (2000, 31993),
    "texts4x1024": (4, 4096),
    "pair4096": (1, 4096),
    "pairs4x1024": (4, 4096),
}


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    directory = default_snapshots() or REPO.parent / "shared" / "models"
    if not (directory / EMBEDDER / "tokenizer.json").is_file():
        pytest.skip("the real tokenizer files are neither in $SAMEVEC_SNAPSHOTS nor in ../shared/models")
    found = {}
    for name in (EMBEDDER, RERANKER):
        found[name] = Tokenizer.from_file(str(directory / name / "tokenizer.json"))
        found[name].no_padding()
        found[name].no_truncation()
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_token_counts_are_the_real_tokenizers(name: str, tokenizers: dict[str, Tokenizer]) -> None:
    workload = make_workload(name)
    encodings = tokenizers[workload.model].encode_batch(list(workload.items))
    assert [len(encoding.ids) for encoding in encodings] == list(workload.lengths_tokens)


@pytest.mark.parametrize("name", WORKLOADS)
def test_items_are_those_of_every_run(name: str) -> None:
    workload = make_workload(name)
    assert workload.digest == DIGESTS[name]
    assert (len(workload.items), workload.useful_tokens) == ITEMS_TOKENS[name]
    assert len(set(workload.items)) == len(workload.items)  # nothing to compute only once
    assert set(workload.compared) <= set(range(len(workload.items)))


def test_mixed64_has_its_median_and_its_tail() -> None:
    lengths = make_workload("mixed64").lengths_tokens
    assert (statistics.median(lengths), max(lengths)) == (41, 304)
    assert list(lengths) != sorted(lengths)


def test_pairs_have_their_lengths() -> None:
    lengths = make_workload("pairs50").lengths_tokens
    assert (min(lengths), max(lengths)) == (48, 304)
    long = [n for n in make_workload("pairs100").lengths_tokens if n > 500]
    assert (len(long), round(statistics.mean(long))) == (64, 703)


def test_every_workload_is_compared_in_full_but_one() -> None:
    partial = [name for name in WORKLOADS if len(make_workload(name).compared) != len(make_workload(name).items)]
    assert partial == ["short2000"]
    assert len(make_workload("short2000").compared) == 250


def test_characters_are_not_proportional_to_tokens() -> None:
    workload = make_workload("mixed64")
    by_tokens = sorted(range(64), key=lambda i: workload.lengths_tokens[i])
    by_characters = sorted(range(64), key=lambda i: len(workload.items[i]))
    assert by_tokens != by_characters


def test_a_writer_writes_any_length() -> None:
    writer = Writer("seed", "rerank")
    assert len(writer.text(1).split()) == 1
    assert all(side for side in writer.pair(2))


@pytest.mark.parametrize(("name", "n_items"), [("mixed64", 33), ("pairs50", 32), ("short2000", 131), ("query16", 1)])
def test_tuning_sample_is_spread_over_the_lengths(name: str, n_items: int) -> None:
    workload = make_workload(name)
    sample = tuning_sample(workload)
    assert len(sample) == n_items
    assert set(sample) <= set(workload.items)
