"""``python -m samevec``, and the command ``samevec``."""

from __future__ import annotations

from samevec.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
