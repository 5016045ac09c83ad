"""Proof that a candidate computes what the PyTorch reference computes, on this machine."""
