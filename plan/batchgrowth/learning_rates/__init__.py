"""How the learning rate follows the batch: one rule, one module."""

from batchgrowth.extend import RateEntry
from batchgrowth.schema.choice import Registry

LEARNING_RATES = Registry("learningRate.rule", "DecayPastMaximum", RateEntry, __name__, __path__)
