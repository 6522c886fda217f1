"""How the batch grows: one rule, one module."""

from batchgrowth.extend import GrowthEntry
from batchgrowth.schema.choice import Registry

GROWTH = Registry("batch.growth.type", "Constant", GrowthEntry, __name__, __path__)
