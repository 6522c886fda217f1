"""How gradients or weights move between the workers: one exchange, one module; the drivers are in the trainer."""

from batchgrowth.extend import ExchangeEntry
from batchgrowth.schema.choice import Registry

EXCHANGES = Registry("exchange.type", "AllReduce", ExchangeEntry, __name__, __path__)

INEXACT = tuple(name for name, entry in EXCHANGES.items() if entry.promise != "Exact")
"""The exchanges whose weights are not those of one process, so that they belong to the mathematics of a job."""

REPEATABLE = tuple(name for name, entry in EXCHANGES.items() if entry.promise == "Repeatable")
"""Those of them whose weights do not depend on the workers."""
