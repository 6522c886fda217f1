"""One copy of the model in one process: its data, shard gradients and sums, steps, evaluations, and its trial."""
