"""The runtime room: texts or pairs in, vectors or scores out, through one session."""
