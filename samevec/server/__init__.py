"""The server room: requests in, shared microbatches, answers out, over HTTP and a Unix socket. Loads no torch."""
