"""Optimizers, one entry each; the trainer has their arithmetic."""

import json
from fractions import Fraction
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from batchgrowth.errors import Fault
from batchgrowth.extend import OptimizerEntry
from batchgrowth.registry import Faults, FinishedPlan
from batchgrowth.schema import ENTRYPOINT, DecimalText, Model, Rule, decimal_rule, module_rule

WEIGHT_DECAY_AT_MOST_ONE = decimal_rule("weightDecay", most=1)
"""The rule of every optimizer with weight decay."""


def decay_idle(job: FinishedPlan) -> Faults:
    """Return a fault if optimizer.withoutDecay spares parameters from a weight decay that is 0 anyway."""
    optimizer = job.spec.optimizer
    if optimizer.without_decay is None or Fraction(optimizer.settings.weight_decay) > 0:
        return ()
    path = "spec.optimizer.withoutDecay"
    block = optimizer.entry.block_name
    return (
        Fault(
            path,
            f"it spares nothing, since {block}.weightDecay is 0",
            f"give {block}.weightDecay more than 0, or leave withoutDecay out",
        ),
    )


# --- SGD: Sutskever et al., 2013 ---


class SGDBlock(Model):
    """Stochastic gradient descent with momentum, in the form of Sutskever et al., 2013."""

    momentum: DecimalText = Field(
        "0", description='Momentum: a decimal in quotes, below 1. Default: "0". Example: "0.9".'
    )
    nesterov: bool = Field(False, description="Nesterov's form of momentum; needs momentum. Default: false.")
    weight_decay: DecimalText = Field(
        "0", description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'
    )

    rules: ClassVar = (
        decimal_rule("momentum", below=1),
        WEIGHT_DECAY_AT_MOST_ONE,
        Rule(
            "nesterov",
            "give a momentum more than 0 with it, or leave it out",
            lambda o: not o.nesterov or Fraction(o.momentum) > 0,
            "!self.nesterov || double(self.momentum) > 0.0",
        ),
    )


SGD = OptimizerEntry(
    name="SGD",
    summary="is stochastic gradient descent, with momentum, Nesterov's momentum and weight decay",
    source="Sutskever et al., 2013",
    block=SGDBlock,
    implementation="batchgrowth_trainer.replica.optimizers:sgd_stepper",
    idle=decay_idle,
    example={"momentum": "0.9"},
)


# --- Adagrad: Duchi et al., 2011 ---


class AdagradBlock(Model):
    """Adagrad: Duchi et al., 2011."""

    epsilon: DecimalText = Field(
        "0.0000000001",
        description="Added to the root of the sum of squares: a decimal in quotes, more than 0 and at most 1. "
        'Default: "0.0000000001".',
    )
    weight_decay: DecimalText = Field(
        "0", description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'
    )

    rules: ClassVar = (decimal_rule("epsilon", above=0, most=1, example="0.0000000001"), WEIGHT_DECAY_AT_MOST_ONE)


ADAGRAD = OptimizerEntry(
    name="Adagrad",
    summary="scales each weight's step by the sum of its squared gradients so far",
    source="Duchi et al., 2011",
    block=AdagradBlock,
    implementation="batchgrowth_trainer.replica.optimizers:adagrad_stepper",
    idle=decay_idle,
)


# --- RMSprop: Tieleman and Hinton, 2012 ---


class RMSpropBlock(Model):
    """RMSprop: Tieleman and Hinton, 2012, lecture 6.5."""

    alpha: DecimalText = Field(
        "0.99", description='Decay of the mean of squared gradients: a decimal in quotes, below 1. Default: "0.99".'
    )
    epsilon: DecimalText = Field(
        "0.00000001",
        description="Added to the root of the squared mean: a decimal in quotes, more than 0 and at most 1. "
        'Default: "0.00000001".',
    )
    momentum: DecimalText = Field("0", description='Momentum: a decimal in quotes, below 1. Default: "0".')
    centered: bool = Field(
        False, description="Subtracts the squared mean of gradients from the mean of their squares. Default: false."
    )
    weight_decay: DecimalText = Field(
        "0", description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'
    )

    rules: ClassVar = (
        decimal_rule("alpha", below=1),
        decimal_rule("momentum", below=1),
        decimal_rule("epsilon", above=0, most=1, example="0.00000001"),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


RMSPROP = OptimizerEntry(
    name="RMSprop",
    summary="scales each weight's step by a running mean of its squared gradients",
    source="Tieleman and Hinton, 2012",
    block=RMSpropBlock,
    implementation="batchgrowth_trainer.replica.optimizers:rmsprop_stepper",
    idle=decay_idle,
    example={"momentum": "0.9", "centered": True},
)


# --- Adam: Kingma and Ba, 2015 ---


class AdamBlock(Model):
    """Adam: Kingma and Ba, 2015."""

    beta1: DecimalText = Field(
        "0.9", description='Decay of the mean of gradients: a decimal in quotes, below 1. Default: "0.9".'
    )
    beta2: DecimalText = Field(
        "0.999", description='Decay of the mean of squared gradients: a decimal in quotes, below 1. Default: "0.999".'
    )
    epsilon: DecimalText = Field(
        "0.00000001",
        description="Added to the root of the squared mean: a decimal in quotes, more than 0 and at most 1. "
        'Default: "0.00000001".',
    )
    weight_decay: DecimalText = Field(
        "0",
        description="Weight decay: added to the gradient by Adam, taken off the weights by AdamW. A decimal in "
        'quotes, at most 1. Default: "0".',
    )

    rules: ClassVar = (
        decimal_rule("beta1", below=1),
        decimal_rule("beta2", below=1),
        decimal_rule("epsilon", above=0, most=1, example="0.00000001"),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


ADAM = OptimizerEntry(
    name="Adam",
    summary="scales each weight's step by running means of gradients and their squares",
    source="Kingma and Ba, 2015",
    block=AdamBlock,
    implementation="batchgrowth_trainer.replica.optimizers:adam_stepper",
    idle=decay_idle,
    example={"weightDecay": "0.001"},
)


# --- AdamW: Loshchilov and Hutter, 2019 ---


class AdamWBlock(AdamBlock):
    """Adam with the weight decay subtracted from the weights: Loshchilov and Hutter, 2019."""

    weight_decay: DecimalText = Field(
        "0.01", description='Taken off the weights in each update: a decimal in quotes, at most 1. Default: "0.01".'
    )


ADAMW = OptimizerEntry(
    name="AdamW",
    summary="is Adam with the weight decay subtracted from the weights",
    source="Loshchilov and Hutter, 2019",
    block=AdamWBlock,
    implementation="batchgrowth_trainer.replica.optimizers:adamw_stepper",
    idle=decay_idle,
)


# --- LAMB: You et al., 2020 ---


class LAMBBlock(AdamBlock):
    """Adam with steps in proportion to the norm of each layer's weights: You et al., 2020, algorithm 2."""

    epsilon: DecimalText = Field(
        "0.000001",
        description="Added to the root of the squared mean: a decimal in quotes, more than 0 and at most 1. "
        'Default: "0.000001".',
    )
    weight_decay: DecimalText = Field(
        "0.01",
        description="Weight decay, which is part of the step whose norm is scaled. The parameters in "
        'optimizer.withoutDecay take steps of plain Adam. A decimal in quotes, at most 1. Default: "0.01".',
    )


LAMB = OptimizerEntry(
    name="LAMB",
    summary="is AdamW with a step for each layer, in proportion to the norm of its weights, for large batches",
    source="You et al., 2020",
    block=LAMBBlock,
    implementation="batchgrowth_trainer.replica.optimizers:lamb_stepper",
)


# --- LARS: You et al., 2017 ---


class LARSBlock(Model):
    """SGD with steps in proportion to the norm of each layer's weights: You et al., 2017."""

    momentum: DecimalText = Field("0.9", description='Momentum: a decimal in quotes, below 1. Default: "0.9".')
    trust_coefficient: DecimalText = Field(
        "0.001",
        description="The step of a layer at learning rate 1, relative to the norm of its weights. A decimal in quotes, "
        'more than 0 and at most 1. Default: "0.001".',
    )
    weight_decay: DecimalText = Field(
        "0",
        description="L2 penalty added to the gradient. The parameters in optimizer.withoutDecay take steps of plain "
        'SGD. A decimal in quotes, at most 1. Default: "0".',
    )

    rules: ClassVar = (
        decimal_rule("momentum", below=1),
        decimal_rule("trustCoefficient", above=0, most=1, example="0.001"),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


LARS = OptimizerEntry(
    name="LARS",
    summary="is SGD with a learning rate for each layer, in proportion to the norm of its weights, for large batches",
    source="You et al., 2017",
    block=LARSBlock,
    implementation="batchgrowth_trainer.replica.optimizers:lars_stepper",
    example={"weightDecay": "0.0001"},
)


# --- LBFGS: Nocedal, 1980; in the form of Sandblaster, Dean et al., 2012 ---


class LBFGSBlock(Model):
    """Limited-memory BFGS without a line search: Nocedal and Wright, 2006, algorithm 7.4."""

    history: int = Field(
        10,
        ge=1,
        le=100,
        description="How many of the last steps are kept, each with the change of the gradient that it caused; each "
        "such pair is as large as two copies of the weights. Default: 10.",
    )
    least_curvature: DecimalText = Field(
        "0.0000000001",
        description="Pairs whose inner product is at most this number are left out. A decimal in quotes, more than 0 "
        'and at most 1. Default: "0.0000000001".',
    )
    weight_decay: DecimalText = Field(
        "0", description='L2 penalty added to the gradient: a decimal in quotes, at most 1. Default: "0".'
    )

    rules: ClassVar = (
        decimal_rule("leastCurvature", above=0, most=1, example="0.0000000001"),
        WEIGHT_DECAY_AT_MOST_ONE,
    )


LBFGS = OptimizerEntry(
    name="LBFGS",
    summary="learns the curvature from its last steps, for batches of the whole data set",
    source="Dean et al., 2012; Nocedal and Wright, 2006",
    block=LBFGSBlock,
    implementation="batchgrowth_trainer.replica.lbfgs:maker",
    idle=decay_idle,
    example={"history": 5},
    compares_gradients=True,
)


# --- Torch: any subclass of torch.optim.Optimizer, from torch, a package, or the user's code ---

SettingText = Annotated[str, StringConstraints(max_length=1024)]
RESERVED = ("params", "lr")


class TorchBlock(Model):
    """A subclass of torch.optim.Optimizer."""

    optimizer: str = Field(
        pattern=ENTRYPOINT,
        min_length=3,
        max_length=253,
        description="The class, written package.module:Class. Its step() is called without a closure. Required. "
        "Example: torch.optim:NAdam.",
    )
    arguments: dict[str, SettingText] = Field(
        default_factory=dict,
        max_length=32,
        description="Keyword arguments of the class besides lr, at most 32, each as JSON in quotes; what is not JSON "
        'is text. Default: none. Example: {betas: "[0.9, 0.95]", weight_decay: "0.01"}.',
    )

    rules: ClassVar = (
        module_rule("optimizer"),
        Rule(
            "arguments",
            "remove params and lr: the parameters are the model's, and learningRate gives the rate of each update",
            lambda t: not any(name in t.arguments for name in RESERVED),
            " && ".join(f"!('{name}' in self.arguments)" for name in RESERVED),
        ),
    )

    @property
    def values(self) -> dict[str, object]:
        """Return the arguments as Python values."""
        return {name: _value(text) for name, text in self.arguments.items()}


def _value(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # JSON has no tuples, which torch's classes want for numbers that belong together, such as betas.
    return tuple(value) if isinstance(value, list) else value


TORCH = OptimizerEntry(
    name="Torch",
    summary="is any subclass of torch.optim.Optimizer, from torch, a package or your own code",
    source="PyTorch, torch.optim",
    block=TorchBlock,
    implementation="batchgrowth_trainer.replica.torch_optimizer:maker",
    example={"optimizer": "torch.optim:NAdam", "arguments": {"betas": "[0.9, 0.95]"}},
)
