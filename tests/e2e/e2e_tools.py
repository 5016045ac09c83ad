"""Processes as users start them, and homes with the exported toy pair."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samevec.artifact import MANIFEST_NAME, Artifact, FileDigest, find_artifact
from samevec.digest import sha256_file
from samevec.gate import binding_of, receipt_directories, reference_of
from samevec.lock import FROZEN_TOLERANCE, load_lock
from samevec.opening import locate
from samevec.parity.cases.builtin import builtin_cases, quick_positions
from samevec.parity.gate import run_gate
from samevec.parity.receipt import Receipt, write_receipt
from samevec.runtime.providers.profiles import get_profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from emulation import EmulatedProcessor

    from samevec.opening import Candidate

ROOT = Path(__file__).resolve().parents[2]
LOCK = load_lock("toy")
EMBEDDER, RERANKER = "toy-qwen3-embedder", "toy-modernbert-reranker"
TOYS = (EMBEDDER, RERANKER)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        """What samevec itself said was wrong."""
        return [line for line in self.err.splitlines() if line.startswith("samevec: ")]


@dataclass(frozen=True)
class ToyHome:
    """A home in which the toy pair was exported and proved, by the commands that ``status`` printed.

    ``before`` is what it said of the empty home; ``exports`` are those commands.
    """

    path: Path
    before: list[dict[str, Any]]
    exports: list[Done]


def environment(folder: Path) -> dict[str, str]:
    """The variables of a user without settings, at home in a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SAMEVEC_", "XDG_"))}
    paths = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, "HOME": str(folder), "PYTHONPATH": paths}


#: Nothing is read-only to root; this starts Python without that privilege (PR_CAPBSET_DROP, CAP_DAC_OVERRIDE).
UNPRIVILEGED = """
import ctypes, os, sys
if os.geteuid() == 0 and ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) != 0:
    sys.exit(77)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def samevec(*arguments: object, folder: Path, unprivileged: bool = False) -> Done:
    """Run a command to its end, from a folder that is also HOME."""
    start = [sys.executable, "-c", UNPRIVILEGED] if unprivileged else [sys.executable]
    done = subprocess.run(
        [*start, "-m", "samevec", *map(str, arguments)],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def paste(command: str, *more: object, folder: Path) -> Done:
    """Run a command that samevec printed, as a shell would read it."""
    name, *arguments = shlex.split(command)
    assert name == "samevec"
    return samevec(*arguments, *more, folder=folder)


@dataclass
class Live:
    """A serving process."""

    process: subprocess.Popen[str]
    ready: str
    folder: Path

    @property
    def url(self) -> str:
        return self.ready.split(" at ", 1)[1].split()[0].rstrip(",")

    def mapped_files(self) -> str:
        return Path(f"/proc/{self.process.pid}/maps").read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


#: Serves like ``-m samevec`` and at its end writes down which modules it had loaded.
TELLING_SERVER = """
import atexit, json, sys
path = sys.argv.pop()
atexit.register(lambda: open(path, "w").write(json.dumps(sorted(sys.modules))))
from samevec.cli.main import main
main()
"""


@contextmanager
def serving(
    *arguments: object,
    folder: Path,
    modules_file: Path | None = None,
    processor: EmulatedProcessor | None = None,
    timeout_s: float = 600,
) -> Iterator[Live]:
    """Start ``samevec serve`` and wait for its ready line; killed at the end if the block left it running."""
    python = (sys.executable,) if processor is None else processor.command
    variables = environment(folder) if processor is None else {**processor.environment(), "HOME": str(folder)}
    start = ["-m", "samevec"] if modules_file is None else ["-c", TELLING_SERVER]
    command = [*python, *start, "serve", "--port", "0", *map(str, arguments)]
    command += [] if modules_file is None else [str(modules_file)]
    log = folder / "serve.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        watchdog = threading.Timer(timeout_s, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " ready at " in line, log.read_text()
            yield Live(process, line, folder)
            assert "Traceback" not in log.read_text()
        finally:
            watchdog.cancel()
            process.kill()


def pass_twenty_quick_gates(candidate: Candidate) -> None:
    """Ask the quick gate twenty times in a row: it passes each time, with the bits of the export."""
    reference, answers = reference_of(candidate), candidate.answers
    assert answers is not None
    n_quick = len(quick_positions(builtin_cases(candidate.entry.task, prompts=candidate.entry.prompts)))
    for _ in range(20):
        verdict = run_gate(
            candidate.model,
            reference,
            tolerance=FROZEN_TOLERANCE,
            profile=candidate.profile,
            quick=True,
            answers=answers,
        )
        assert verdict.failures == ()
        assert verdict.answers is not None
        assert (verdict.answers.n_compared, verdict.answers.changed) == (n_quick, ())
        assert verdict.answers.digest == answers.digest


def copy_home(source: Path, target: Path, *, receipts: bool = True) -> Path:
    """Copy the artifacts of a home."""
    ignore = None if receipts else shutil.ignore_patterns("receipts")
    shutil.copytree(source / "artifacts", target / "artifacts", ignore=ignore)
    return target


def artifact_of(home: Path, name: str) -> Artifact:
    return find_artifact(home, LOCK.model(name), "cpu")


def rewrite_receipt(home: Path, name: str, *, passed: bool = True, failures: Sequence[str] = (), **bound: Any) -> None:
    """Replace a model's receipts by one that says what the test wants."""
    located = locate(LOCK.model(name), get_profile("cpu"), home=home)
    shutil.rmtree(located.artifact.receipts_path, ignore_errors=True)
    binding = dataclasses.replace(binding_of(located), **bound)
    receipt = Receipt(
        binding=binding,
        passed=passed,
        failures=tuple(failures),
        created_at="2024-01-01T00:00:00+00:00",
        tolerance=LOCK.tolerance.to_dict(),
    )
    write_receipt(receipt_directories(located), receipt)


def zero_block(folder: Path, *, offset: int = 4 << 20, n_bytes: int = 1 << 20) -> Path:
    """Zero a block in the middle of the weights; size and time stamp stay."""
    path = folder / "model.onnx.data"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        assert any(file.read(n_bytes))
        file.seek(offset)
        file.write(b"\0" * n_bytes)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path


def adopt_digests(artifact: Artifact) -> None:
    """Make a manifest agree with files that were changed: only the values can tell then."""
    files = {
        name: FileDigest(size_bytes=(artifact.path / name).stat().st_size, sha256=sha256_file(artifact.path / name))
        for name in artifact.manifest.files
    }
    changed = dataclasses.replace(artifact.manifest, files=files)
    (artifact.path / MANIFEST_NAME).write_bytes(changed.to_bytes())
