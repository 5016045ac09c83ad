"""Where a checkpoint's files come from: a hub or a folder, verified against the lock."""
