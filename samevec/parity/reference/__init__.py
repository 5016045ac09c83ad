"""PyTorch's results: computed, stored and read."""
