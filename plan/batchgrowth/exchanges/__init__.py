"""How gradients move between the workers: one exchange, one module; the drivers are in the trainer."""

from batchgrowth.extend import ExchangeEntry
from batchgrowth.schema.choice import Registry

EXCHANGES = Registry("exchange.type", "AllReduce", ExchangeEntry, __name__, __path__)
