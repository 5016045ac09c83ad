"""A checkpoint's files, from a hub or a folder, verified against the lock."""
