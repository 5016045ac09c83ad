"""Rewrites the golden files on purpose: ``python tests/golden/rewrite.py [--home DIR] [--help-only]``.

``--home`` names a home in which the toy pair is exported already: only the gate runs. Otherwise the pair is exported
first, in a minute or two; needed after a change of the export.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from frozen import FOLDER, frozen_help, frozen_pair, run


def main() -> None:
    parser = argparse.ArgumentParser(description="Rewrite the golden files.")
    parser.add_argument("--home", type=Path, help="a home with the exported toy pair")
    parser.add_argument("--help-only", action="store_true", help="only help.txt, which needs no export")
    arguments = parser.parse_args()
    found = {"help.txt": frozen_help()}
    if not arguments.help_only:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) if arguments.home is None else arguments.home
            exported = any((home / "artifacts").glob("toy-*/manifest.json"))
            run("parity" if exported else "export", "--lock", "toy", "--home", home)
            found.update(frozen_pair(home))
        for path in [*FOLDER.glob("*.json"), *FOLDER.glob("*.jsonl"), *FOLDER.glob("*.txt")]:
            path.unlink()
    for name, text in found.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {name}\n")


if __name__ == "__main__":
    main()
