"""How many workers a batch can use."""

from batchgrowth.spec import Workers


def wanted_workers(batch_size: int, workers: Workers) -> int:
    """batch_size // examplesPerWorker, clamped to the bounds of the spec; at least 1."""
    return min(max(batch_size // workers.examples_per_worker, workers.minimum, 1), workers.maximum)
