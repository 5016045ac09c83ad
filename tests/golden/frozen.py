"""What the toy pair shows to the outside, as text to compare: a change of any of it is a decision.

Everything is asked for as a user does, by commands and over HTTP. What one machine decides is masked: times, versions,
processor, and the differences from PyTorch, whose bits depend on the processor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samevec.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FOLDER", "ROOT", "frozen_help", "frozen_pair", "run"]

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]

_DIGEST = re.compile(r"^(sha256:)?[0-9a-f]{16,64}$")
_LABEL = re.compile(r'(\w+)="')
#: Of a comparison with PyTorch: the processor that computed the reference decides them.
_MEASURED = ("max_abs", "max_at", "min_cosine", "worst_ratio")
#: Keys whose values one machine, one moment or one version decides.
_MASKED = {
    *("created_at", "device", "elapsed_s", "processor", "started_at", "tag", "uptime_s", "version"),
    *("live_toolchain", "reference_toolchain", "toolchain"),
    *("numpy_version", "onnxruntime_version", "samevec_version", "tokenizers_version", "versions", "worst_rows"),
    "code",  # moves with every change of a bound source
    *_MEASURED,
}
#: Files of an artifact that hold PyTorch's own bits.
_OF_PYTORCH = ("reference.safetensors",)


def frozen_help() -> str:
    """Return the --help of every command, as wide as a page."""
    return "\n".join(
        f"$ {' '.join(words)} --help\n{command.get_help(context)}\n" for words, command, context in _commands()
    )


def _commands() -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    settings: dict[str, Any] = {"terminal_width": 120, "max_content_width": 120, "color": False}
    pending: list[tuple[tuple[str, ...], click.Command, click.Context | None]] = [(("samevec",), cli, None)]
    while pending:
        words, command, parent = pending.pop(0)
        context = click.Context(command, parent=parent, info_name=words[-1], **command.context_settings, **settings)
        yield words, command, context
        if isinstance(command, click.Group):
            pending += [((*words, name), inner, context) for name, inner in sorted(command.commands.items())]


def frozen_pair(home: Path) -> dict[str, str]:
    """Return the golden files of an exported pair by name.

    Parameters
    ----------
    home : Path
        Both toy models are exported there; the gate runs again for a model whose receipt is not current.
    """
    found = _served(home)
    for manifest_path in sorted((home / "artifacts").glob("toy-*/manifest.json")):
        manifest = json.loads(manifest_path.read_bytes())
        receipt_path = max((manifest_path.parent / "receipts").iterdir(), key=lambda path: path.stat().st_mtime)
        receipt, model = json.loads(receipt_path.read_bytes()), manifest["model"]
        found[f"artifact-{model}.json"] = _text(_without_machine(manifest))
        found[f"receipt-{model}.json"] = _text(shape(receipt))
        found[f"cells-{model}.jsonl"] = "".join(json.dumps(_cell(one)) + "\n" for one in _cells(receipt))
    with tempfile.TemporaryDirectory() as folder:
        run("parity", "--lock", "toy", "--home", home, "--quick", "--report", folder)
        report = (Path(folder) / "report.json").read_text(encoding="utf-8")
    found["report.json"] = _text(shape(json.loads(report)))
    return found


def run(*arguments: object) -> str:
    """Run a samevec command of this checkout and return what it printed."""
    command = [sys.executable, "-m", "samevec", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def shape(value: Any, key: str = "") -> Any:
    """Return a document without its measurements: keys, states and words stay, each kind of list item stands once."""
    if key in _MASKED:
        return f"<{key}>"
    if isinstance(value, dict):
        return {name: shape(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return list({json.dumps(inner): inner for inner in (shape(inner) for inner in value)}.values())
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return "<digest>" if _DIGEST.match(value) else value
    return f"<{type(value).__name__}>"


def _served(home: Path) -> dict[str, str]:
    """Serve the pair and ask what a server says of itself."""
    arguments = ["serve", "--lock", "toy", "--home", str(home), "--port", "0", "--log-format", "json", "--prove"]
    command = [sys.executable, "-m", "samevec", *arguments]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        watchdog = threading.Timer(400, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            errors.seek(0)
            assert line, errors.read()
            get = _getter(json.loads(line)["url"])
            return {
                "info.json": _text(shape(json.loads(get("/info")))),
                "openapi.json": _text(_without_machine(json.loads(get("/openapi.json")))),
                "metrics.txt": _metric_names(get("/metrics").decode()),
            }
        finally:
            watchdog.cancel()
            process.terminate()


def _getter(url: str) -> Callable[[str], bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path: str) -> bytes:
        with opener.open(url + path, timeout=60) as response:
            return bytes(response.read())

    return get


def _metric_names(text: str) -> str:
    """Return each metric's type line and the label names of its samples."""
    lines = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            lines.add(line.removeprefix("# TYPE "))
        elif not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            lines.add(f"  {name} {' '.join(sorted(_LABEL.findall(labels)))}".rstrip())
    return "\n".join(sorted(lines, key=str.strip)) + "\n"


def _cells(receipt: dict[str, Any]) -> list[dict[str, Any]]:
    cells = receipt.get("cells") or receipt["summary"]["cells"]
    assert len(cells) > 10, "the receipt lists no cells"
    return list(cells)


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell without the differences from PyTorch: its bits are those that ``answers`` pins, or its state."""
    kept = {name: value for name, value in cell.items() if name != "elapsed_s"}
    comparison = cell.get("comparison")
    if comparison:
        kept["comparison"] = {name: value for name, value in comparison.items() if name not in _MEASURED}
    return kept


def _without_machine(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: f"<{name}>" if name in _MASKED or name in _OF_PYTORCH else _without_machine(inner)
            for name, inner in value.items()
        }
    return [_without_machine(inner) for inner in value] if isinstance(value, list) else value


def _text(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SAMEVEC_")}
    return {**kept, "PYTHONPATH": str(ROOT)}
