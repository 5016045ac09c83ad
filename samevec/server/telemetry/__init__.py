"""What is known of a request when it has ended: log, metrics, traces."""
