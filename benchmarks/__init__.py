"""Benchmarks: samevec against how people run these models today. See README.md."""
