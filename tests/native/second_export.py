"""Run under another processor: write a model's native graph anew and record what it answers to the quick cases.

Arguments: lock, model, home, folder, and the checkpoint's configuration as JSON, since transformers, which adds its
defaults, takes minutes to load under emulation. The folder gets ``model.onnx``, its data and ``trace.onnx``. Prints the
kernels' name, then the quick cases whose bits are not those of the artifact in the home, and behind the last case's
number the rows of the sweep, of which a few short ones are computed.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

from samevec.artifact import TOKENIZER_NAME, find_artifact
from samevec.export.answers import record_answers
from samevec.export.native import write_native_graph
from samevec.lock import load_lock
from samevec.native.library import load_library
from samevec.parity.answers import read_answers
from samevec.parity.cases.builtin import builtin_cases, quick_positions
from samevec.parity.reference.file import read_reference
from samevec.progress import SilentProgress
from samevec.runtime.providers.profiles import get_profile

N_SWEPT = 8


def main(lock: str, model: str, home: str, folder: str, config: str) -> None:
    """Export and compare."""
    entry, directory = load_lock(lock).model(model), Path(folder)
    artifact = find_artifact(Path(home), entry, "cpu")
    (snapshot,) = (path for path in (Path(home) / "snapshots" / model).iterdir() if path.is_dir())
    settings = SimpleNamespace(**json.loads(Path(config).read_bytes()))
    write_native_graph(snapshot, settings, entry, directory, SilentProgress())
    shutil.copyfile(artifact.tokenizer_path, directory / TOKENIZER_NAME)
    cases = builtin_cases(entry.task, prompts=entry.prompts)
    places = quick_positions(cases)
    tokenizer, sweep = artifact.manifest.tokenizer, read_reference(artifact.reference_path).sweep
    assert sweep is not None
    made = record_answers(
        entry,
        get_profile("cpu"),
        cases.subset(places),
        sweep.ids[:N_SWEPT],
        directory=directory,
        pad_token_id=tokenizer.pad_token_id,
        type_ids=tokenizer.type_ids,
        progress=SilentProgress(),
    )
    recorded = read_answers(artifact.answers_path, fix="samevec export")
    changed = [case for case, digest in zip(places, made.cases, strict=True) if recorded.cases[case] != digest]
    changed += [len(cases) + row for row in range(N_SWEPT) if made.sweep[row] != recorded.sweep[row]]
    print(load_library().instruction_set, *changed)


if __name__ == "__main__":
    main(*sys.argv[1:])
