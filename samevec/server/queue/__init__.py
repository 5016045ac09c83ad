"""From admitted requests to microbatches run by worker threads."""
