"""Which parameters the weight decay leaves alone."""

from collections.abc import Callable
from fnmatch import fnmatchcase

from batchgrowth.errors import WorkloadError
from batchgrowth.spec import JobSpec
from torch import Tensor, nn


def spared(spec: JobSpec, model: nn.Module) -> Callable[[str, Tensor], bool]:
    """Whether the decay leaves a parameter alone, by its name and shape.

    Raises WorkloadError for a pattern that no trained parameter has.
    """
    asked = spec.optimizer.without_decay
    if asked is None:
        return lambda _name, _parameter: False
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for index, pattern in enumerate(asked.names):
        if not any(fnmatchcase(name, pattern) for name in names):
            few = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
            raise WorkloadError(
                f"optimizer.withoutDecay.names[{index}]: no trained parameter is named {pattern}; there are {few}"
            )

    def is_spared(name: str, parameter: Tensor) -> bool:
        return parameter.ndim < asked.below_dimensions or any(fnmatchcase(name, one) for one in asked.names)

    return is_spared
