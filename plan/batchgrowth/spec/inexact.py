"""What a job with an inexact exchange cannot have: its gradients are not those of the weights that they move."""

from batchgrowth.exchanges import INEXACT
from batchgrowth.growth import GROWTH
from batchgrowth.learning_rates import LEARNING_RATES
from batchgrowth.optimizers import OPTIMIZERS
from batchgrowth.schema.model import Rule

_MEASURED = [name for name, entry in GROWTH.items() if entry.quantity]
_GAINING = [name for name, entry in LEARNING_RATES.items() if entry.gain]
_COMPARING = [name for name, entry in OPTIMIZERS.items() if entry.compares_gradients]

RULES = (
    Rule(
        "batch.growth.type",
        f"give a growth that measures nothing with exchange {', '.join(INEXACT)}: its gradients are "
        "not those of the weights that they move",
        lambda s: s.exchange.type not in INEXACT or not s.batch.growth.entry.quantity,
        f"!(self.exchange.type in {list(INEXACT)}) || !(self.batch.growth.type in {_MEASURED})",
    ),
    Rule(
        "learningRate.rule",
        f"give a rule that measures nothing with exchange {', '.join(INEXACT)}",
        lambda s: s.exchange.type not in INEXACT or s.learning_rate.entry.gain is None,
        f"!(self.exchange.type in {list(INEXACT)}) || !(self.learningRate.rule in {_GAINING})",
    ),
    Rule(
        "optimizer.type",
        f"give another optimizer than {', '.join(_COMPARING)} with exchange {', '.join(INEXACT)}: it learns from how "
        "the gradient changes along its own steps",
        lambda s: s.exchange.type not in INEXACT or not s.optimizer.entry.compares_gradients,
        f"!(self.exchange.type in {list(INEXACT)}) || !(self.optimizer.type in {_COMPARING})",
    ),
)
