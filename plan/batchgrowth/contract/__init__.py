"""What operator and trainer share: reports, status, metrics, logs, and the environment of their processes."""
