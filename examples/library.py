"""Embed and rerank in this process, without a server.

samevec export                      # once: fetches, exports and proves both models
python examples/library.py

samevec export --lock toy           # the same with nothing to download; the answers mean nothing
python examples/library.py --lock toy
"""

from __future__ import annotations

import argparse

import samevec
from samevec.errors import SamevecError
from samevec.lock import load_lock

QUERY = "when does the ferry leave"
DOCUMENTS = [
    "The ferry leaves the island at seven and reaches the mainland before the market opens.",
    "Fold the egg whites into the batter in three parts.",
    "Glaciers retreat when more ice melts in summer than falls as snow in winter.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Rank three texts with an embedder and with a reranker.")
    parser.add_argument("--lock", help="a lock file, or toy")
    lock = parser.parse_args().lock
    names = {entry.task: entry.name for entry in load_lock(lock).models}
    try:
        embedder = samevec.load_embedder(names["embed"], lock=lock)
        reranker = samevec.load_reranker(names["rerank"], lock=lock)
    except SamevecError as error:
        raise SystemExit(str(error)) from error  # the message ends with the command to run

    query = embedder.encode([QUERY], prompt="query", dimensions=256)  # float32 [1, 256], unit length
    documents = embedder.encode(DOCUMENTS, prompt="document", dimensions=256)
    print(f"cosines ({embedder.name}):")
    for cosine, document in zip(documents @ query[0], DOCUMENTS, strict=True):
        print(f"  {cosine:+.4f}  {document[:60]}")

    print(f"scores ({reranker.name}), best first:")
    for ranked in reranker.rank(QUERY, DOCUMENTS, top_n=2):
        print(f"  {ranked.score:.4f}  {DOCUMENTS[ranked.index][:60]}")


if __name__ == "__main__":
    main()
