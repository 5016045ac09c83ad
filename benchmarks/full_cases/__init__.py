"""Seven public faults that must not happen, on the full-shape pair; a module a case."""
