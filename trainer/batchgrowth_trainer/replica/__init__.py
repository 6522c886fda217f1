"""One copy of the model in one process: shard gradients, their sum along the fixed tree, and the optimizer's step."""
