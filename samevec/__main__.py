"""``python -m samevec``."""

from samevec.cli import main

main()
