"""Build full-shape snapshot folders: the product models' real configuration and tokenizer files, seeded random weights.

Speed, memory, file layout and parity do not depend on the values of the weights; meaning does. Numbers measured with
these folders say nothing about quality and must never be shown as if they did.

    python benchmarks/full_shape.py DIR [--model NAME ...] [--files PATH] [--seed N]

writes ``DIR/<model>/`` for both product models (1.8 GB), or those named, and ``DIR/full.lock``, which pins them with
source ``local:<model>``; then ``samevec export --lock DIR/full.lock --from DIR``. Same seed, same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from samevec.digest import sha256_file
from samevec.export.toy.lock import content_revision
from samevec.export.toy.synthetic import TensorSpec, bert_tensors, modernbert_tensors, qwen3_tensors, write_tensors
from samevec.lock import Golden, LockedFile, LockedModel, dump_lock, load_lock
from samevec.settings import default_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["WEIGHTS", "build_snapshot", "main", "tensor_table"]

WEIGHTS = "model.safetensors"
_HEADER = (
    "# The product models' real files with random weights. No answer they give means anything.\n"
    "# Written by benchmarks/full_shape.py.\n"
)
# Powers of two that keep attention logits near a deviation of 1 and let every layer weigh in the result: with random
# values at the plain scale ModernBERT's layers would add next to nothing to its embeddings.
_RERANKER_BOOSTS = {"attn.Wqkv": 1, "attn.Wo": 1, "mlp.Wo": 1, "classifier": 1}
# Logits then have a deviation of 1.4 over forty pairs, and segment ids move them by up to 5.
_CROSS_ENCODER_BOOSTS = {"self.query": 2, "self.key": 2, "self.value": 2} | {
    "output.dense": 1,
    "pooler.dense": 1,
    "classifier": 2,
}


def tensor_table(entry: LockedModel, config: Mapping[str, Any]) -> list[TensorSpec]:
    """Return every tensor of a product model: names, shapes and stored dtype as in the real checkpoint.

    Parameters
    ----------
    entry : LockedModel
    config : mapping
        Its ``config.json``.

    Returns
    -------
    list of TensorSpec
        In file order.
    """
    if (entry.task, entry.architecture) == ("embed", "qwen3"):
        return qwen3_tensors(config)
    if (entry.task, entry.architecture) == ("rerank", "bert"):
        return bert_tensors(config, boosts=_CROSS_ENCODER_BOOSTS)
    if (entry.task, entry.architecture) == ("rerank", "modernbert"):
        return modernbert_tensors(config, boosts=_RERANKER_BOOSTS)
    # all-minilm-l6-v2: its real weights come with a package, see docs/adding-a-model.md.
    raise SystemExit(f"{entry.name}: no table of random weights for {entry.architecture} with task {entry.task}")


def build_snapshot(
    entry: LockedModel,
    files_dir: Path,
    target: Path,
    *,
    seed: int,
    on_bytes: Callable[[int], None] | None = None,
) -> LockedModel:
    """Write a snapshot folder and return the lock entry that pins it.

    The entry is the real one with another source, another revision, the new weights' digest, and no golden value that
    depends on weights. A file of `files_dir` that is missing or is not the pinned one ends the program.
    """
    files = tuple(_copy(file, files_dir, target) for file in entry.files if file.path != WEIGHTS)
    specs = tensor_table(entry, json.loads((target / "config.json").read_bytes()))
    part = target / f"{WEIGHTS}.part"
    size_bytes, sha256 = write_tensors(part, specs, seed=seed, on_bytes=on_bytes)
    # A folder in use keeps the file it has open.
    part.replace(target / WEIGHTS)
    files = (LockedFile(path=WEIGHTS, size_bytes=size_bytes, sha256=sha256), *files)
    return replace(
        entry,
        source=f"local:{entry.name}",
        # Not the real commit: two different checkpoints must not share a folder named by revision.
        revision=content_revision(files),
        golden=Golden(tokens=entry.golden.tokens),
        files=files,
        optional=False,
    )


def _files_of(entry: LockedModel, folder: Path) -> Path:
    """Return the model's folder: by its name, or by its repository's, as ``samevec export --from`` looks for it."""
    by_name, by_source = folder / entry.name, folder / entry.source.rpartition("/")[2]
    return by_source if by_source.is_dir() and not by_name.is_dir() else by_name


def _copy(file: LockedFile, files_dir: Path, target: Path) -> LockedFile:
    source, copy = files_dir / file.path, target / file.path
    if not source.is_file():
        raise SystemExit(f"{source}: not found; --files needs a folder with the model's real files")
    if sha256_file(source) != file.sha256:
        raise SystemExit(f"{source}: not the file models.lock pins")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(source.read_bytes())
    return file


def _dump(entries: Sequence[LockedModel]) -> str:
    lines = dump_lock(replace(load_lock(None), models=tuple(entries))).splitlines(keepends=True)
    while lines[0].startswith("#"):
        lines.pop(0)
    return _HEADER + "".join(lines)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--model", action="append", metavar="NAME", help="default: the product pair")
    parser.add_argument("--files", type=Path, default=default_snapshots(), help="default: $SAMEVEC_SNAPSHOTS")
    parser.add_argument("--seed", type=int, default=1, help="of the weights (default: 1)")
    arguments = parser.parse_args(argv)
    if arguments.files is None:
        parser.error("no real files: give --files PATH or set SAMEVEC_SNAPSHOTS")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parse(argv)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    built = []
    with Progress(*columns) as progress:
        lock = load_lock(None)
        for entry in [lock.model(name) for name in arguments.model or ()] or lock.default_models:
            task = progress.add_task(entry.name, total=entry.file(WEIGHTS).size_bytes)
            files_dir, target = _files_of(entry, arguments.files), arguments.directory / entry.name
            advance = partial(progress.advance, task)
            built.append(build_snapshot(entry, files_dir, target, seed=arguments.seed, on_bytes=advance))
    lock_path = arguments.directory / "full.lock"
    lock_path.write_text(_dump(built), encoding="utf-8", newline="\n")
    sys.stdout.write(f"{lock_path}: {' and '.join(entry.name for entry in built)}, random weights: never quality\n")


if __name__ == "__main__":
    main()
