"""A cache of vectors that any machine may fill: with the profile cpu, one text has one vector, to the bit.

python examples/vector_cache.py vectors.db              # the second run computes nothing, on whatever machine
python examples/vector_cache.py vectors.db --lock toy   # the same with the toy pair
"""

from __future__ import annotations

import argparse
import hashlib
import sqlite3
from typing import TYPE_CHECKING

import numpy as np

import samevec
from samevec.artifact import find_artifact
from samevec.digest import digest_json
from samevec.errors import SamevecError
from samevec.lock import load_lock
from samevec.settings import default_home

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from samevec.runtime.embedder import Embedder

TEXTS = ["The ferry leaves at seven.", "Fold the egg whites into the batter.", "The ferry leaves at seven."]


class VectorCache:
    """Vectors in SQLite, by the bits of the model's built-in answers, the prompt, the dimensions and the text."""

    def __init__(self, path: str, embedder: Embedder) -> None:
        self.n_computed = 0
        self._embedder = embedder
        # What the model answered at its export; other weights or other arithmetic give another digest.
        self._answers = find_artifact(default_home(), embedder.entry, "cpu").manifest.answers
        self._table = sqlite3.connect(path)
        self._table.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, digest TEXT, vector BLOB)")

    def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dimensions: int | None = None
    ) -> NDArray[np.float32]:
        dimensions = dimensions or self._embedder.dimensions
        prefix = None if prompt is None else self._embedder.entry.prompts[prompt]
        keys = [digest_json([self._answers, prefix, dimensions, text]) for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if self._find(key) is None}
        if missing:
            vectors, digests = self._embedder.encode(
                list(missing.values()), prompt=prompt, dimensions=dimensions, return_digest=True
            )
            rows = zip(missing, digests, (row.astype("<f4").tobytes() for row in vectors), strict=True)
            with self._table:  # another process may have been faster: with the same bits
                self._table.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)", rows)
            self.n_computed += len(missing)
        return np.stack([np.frombuffer(self._find(key) or b"", "<f4") for key in keys])

    def _find(self, key: str) -> bytes | None:
        found = self._table.execute("SELECT digest, vector FROM vectors WHERE key = ?", (key,)).fetchone()
        if found and found[0] != f"sha256:{hashlib.sha256(found[1]).hexdigest()}":
            raise SystemExit(f"{key}: its vector has changed since it was stored")
        return found[1] if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Embed three texts, each only once.")
    parser.add_argument("path", help="the SQLite file")
    parser.add_argument("--lock", help="a lock file, or toy")
    given = parser.parse_args()
    name = next(entry.name for entry in load_lock(given.lock).models if entry.task == "embed")
    try:
        cache = VectorCache(given.path, samevec.load_embedder(name, lock=given.lock))
    except SamevecError as error:
        raise SystemExit(str(error)) from error  # the message ends with the command to run
    vectors = cache.encode(TEXTS, prompt="document", dimensions=256)
    print(f"{len(vectors)} vectors of {vectors.shape[1]} numbers, {cache.n_computed} computed")
    print(hashlib.sha256(vectors.tobytes()).hexdigest())


if __name__ == "__main__":
    main()
