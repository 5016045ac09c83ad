"""The framed protocol over a Unix socket."""
