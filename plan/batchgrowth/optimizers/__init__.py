"""What turns a gradient into new weights: one optimizer, one module; the arithmetic is in the trainer."""

from batchgrowth.extend import OptimizerEntry
from batchgrowth.schema.choice import Registry

OPTIMIZERS = Registry("optimizer.type", "SGD", OptimizerEntry, __name__, __path__)
