"""One small script a peer, run in an environment of its own; standard library only until it loads a model."""
