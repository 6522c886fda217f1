"""Rules by which the batch grows, as Python objects with the names and parameters of the paper (AdaDamp).

`GeoDamp(initial=64, delay=60, factor=5)` is the growth Geometric of a manifest. Each class has the names of its growth
and of its parameters in a manifest; every other growth of the registry is `Damper("NAME", …)`.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar

from batchgrowth.choices import GROWTH
from batchgrowth.errors import Fault, SpecError

FIRST = 128
"""The first batch size of a rule that is given none, in examples, as in the paper's experiments."""


class Damper:
    """A growth of the registry by its name in a manifest: `Damper("Cabs", initial=64)`.

    `looks` is the block of a measured growth that says when it looks at the training; `settings` are those of the
    growth's own block, in snake_case.
    """

    def __init__(
        self, growth: str = "Constant", initial: int = FIRST, *, looks: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        self.growth = growth
        self.initial = initial
        self.looks = looks
        self.settings = settings

    def block(self) -> dict[str, Any]:
        """Return `batch.growth` as the keywords of `train` have it. Raises SpecError for an unknown growth."""
        if self.growth not in GROWTH:
            remedy = f"give one of {', '.join(GROWTH)}"
            raise SpecError([Fault("batch_size", f"the growth {self.growth!r} is unknown", remedy)])
        block: dict[str, Any] = {"type": self.growth}
        settings = self.settings
        if settings:
            block[GROWTH[self.growth].block_name or self.growth.lower()] = settings
        if self.looks is not None:
            block["looks"] = self.looks
        return block

    def __repr__(self) -> str:
        """Return the call that makes an equal rule."""
        given = {name: value for name, value in vars(self).items() if value not in (None, {})}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def __eq__(self, other: object) -> bool:
        """Return whether both make the same batches."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), self.initial))  # other parameters may have no hash


class _Named(Damper):
    """A growth under the paper's name. `growth_type` is its name in a manifest."""

    growth_type: ClassVar[str]

    def block(self) -> dict[str, Any]:
        """Return `batch.growth` as the keywords of `train` have it. Raises SpecError."""
        return Damper(self.growth_type, self.initial, looks=self._looks(), **self._settings()).block()

    def _looks(self) -> dict[str, Any] | None:
        return None

    def _settings(self) -> dict[str, Any]:
        return {}


class _LookingDamper(_Named):
    """A growth that measures; `dwell` is the number of updates between two looks, one epoch if it is None."""

    def __init__(self, initial: int = FIRST, dwell: int | None = None) -> None:
        self.initial = initial
        self.dwell = dwell

    def _looks(self) -> dict[str, Any] | None:
        return None if self.dwell is None else {"every_updates": self.dwell}


class ConstantDamp(_Named):
    """The batch stays at `initial`."""

    growth_type = "Constant"

    def __init__(self, initial: int = FIRST) -> None:
        self.initial = initial


class GeoDamp(_Named):
    """The batch is multiplied by `factor` every `delay` (or `dwell`) epochs, 5 by default. Geometric."""

    growth_type = "Geometric"

    def __init__(
        self, initial: int = FIRST, delay: int | None = None, factor: float = 5, *, dwell: int | None = None
    ) -> None:
        self.initial = initial
        self.delay = delay
        self.factor = factor
        self.dwell = dwell

    def _settings(self) -> dict[str, Any]:
        if self.delay is not None and self.dwell is not None:
            raise SpecError([Fault("batch_size__dwell", f"given beside delay={self.delay}", "give one of the two")])
        epochs = self.dwell if self.delay is None else self.delay
        return {"factor": self.factor, "every_epochs": 5 if epochs is None else epochs}


class PadaDamp(_Named):
    """The batch grows by `rate` examples with each update, and changes every `dwell` updates. Linear."""

    growth_type = "Linear"

    def __init__(self, initial: int = FIRST, rate: float = 1, dwell: int = 1) -> None:
        self.initial = initial
        self.rate = rate
        self.dwell = dwell

    def _settings(self) -> dict[str, Any]:
        return {"examples_per_update": self.rate, "every_updates": self.dwell}


class AdaDamp(_LookingDamper):
    """The batch grows as the training loss falls. LossRatio."""

    growth_type = "LossRatio"


class RadaDamp(_LookingDamper):
    """The batch grows as loss and gradient shrink together; `loss_weight` weighs the loss. LossAndGradient."""

    growth_type = "LossAndGradient"

    def __init__(self, initial: int = FIRST, dwell: int | None = None, loss_weight: float = 5) -> None:
        super().__init__(initial, dwell)
        self.loss_weight = loss_weight

    def _settings(self) -> dict[str, Any]:
        return {"loss_weight": self.loss_weight}


class GradientNorm(_LookingDamper):
    """The batch grows as the expected gradient shrinks: AdaDamp's form for neural networks. GradientNorm."""

    growth_type = "GradientNorm"


class NoiseScale(_LookingDamper):
    """The batch is `multiple` times the noise scale of the gradient. NoiseScale."""

    growth_type = "NoiseScale"

    def __init__(self, initial: int = FIRST, dwell: int | None = None, multiple: float = 1) -> None:
        super().__init__(initial, dwell)
        self.multiple = multiple

    def _settings(self) -> dict[str, Any]:
        return {"multiple": self.multiple}


NAMES: Mapping[str, type[Damper]] = {
    kind.__name__.lower(): kind
    for kind in (GeoDamp, PadaDamp, AdaDamp, RadaDamp, GradientNorm, NoiseScale, ConstantDamp)
}
"""The rules by their names in lower case, as the software AdaDamp takes them."""


def damper_of(batch_size: Any, nested: Mapping[str, Any]) -> Damper:
    """Return the rule that an estimator's `batch_size` and its `nested` parameters, batch_size__NAME, give.

    Raises SpecError, which names the parameter.
    """
    if isinstance(batch_size, str):
        kind = NAMES.get(batch_size.lower())
        if kind is not None:
            return _made(kind, nested)
        return _made(Damper, {"growth": batch_size, **nested})
    if isinstance(batch_size, type) and issubclass(batch_size, Damper):
        return _made(batch_size, nested)
    if isinstance(batch_size, Damper):
        if not nested:
            return batch_size
        # A new rule, since nested parameters must not change the user's object.
        own = dict(vars(batch_size))
        settings = own.pop("settings", {})
        return _made(type(batch_size), {**own, **settings, **nested})
    if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__"):
        given = batch_size.__name__ if isinstance(batch_size, type) else f"a {type(batch_size).__name__}"
        remedy = "give a number of examples, or a rule such as GeoDamp or GeoDamp(initial=64, delay=10, factor=2)"
        raise SpecError([Fault("batch_size", f"{given} was given", remedy)])
    if nested:
        name = next(iter(nested))
        given = f"{nested[name]!r} was given, and batch_size is the number {batch_size}"
        raise SpecError([Fault(f"batch_size__{name}", given, "give a rule as batch_size too, such as GeoDamp")])
    return ConstantDamp(batch_size.__index__())


def _made(kind: type[Damper], settings: Mapping[str, Any]) -> Damper:
    """Call the class with the settings. Raises SpecError, which lists its parameters, if one of them is unknown."""
    try:
        return kind(**settings)
    except TypeError:
        takes = [name for name in signature(kind).parameters if name != "settings"]
        unknown = [name for name in settings if name not in takes]
        if not unknown:  # the class itself is at fault, such as a user's own
            raise
        remedy = f"{kind.__name__} takes {', '.join(takes)}"
        raise SpecError(
            [Fault(f"batch_size__{unknown[0]}", f"{kind.__name__} has no such parameter", remedy)]
        ) from None
