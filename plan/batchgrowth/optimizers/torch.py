"""Torch: any optimizer class of torch's form, of torch itself, of a package, or of one's own."""

import json
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from batchgrowth.extend import Model, OptimizerEntry, Rule
from batchgrowth.schema.patterns import ENTRYPOINT

SettingText = Annotated[str, StringConstraints(max_length=1024)]
RESERVED = ("params", "lr")


class Torch(Model):
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
        Rule(
            "arguments",
            "remove params and lr: the parameters are the model's, and learningRate gives the rate of each update",
            lambda t: not any(name in t.arguments for name in RESERVED),
            " && ".join(f"!('{name}' in self.arguments)" for name in RESERVED),
        ),
    )

    @property
    def values(self) -> dict[str, object]:
        """The arguments as Python values."""
        return {name: _value(text) for name, text in self.arguments.items()}


def _value(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


ENTRY = OptimizerEntry(
    name="Torch",
    summary="is any subclass of torch.optim.Optimizer, of torch, of a package or of your own",
    source="PyTorch, torch.optim",
    block=Torch,
    implementation="batchgrowth_trainer.replica.optimizers.torch_class:maker",
    example={"optimizer": "torch.optim:NAdam", "arguments": {"betas": "[0.9, 0.95]"}},
)
