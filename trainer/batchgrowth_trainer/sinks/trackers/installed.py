"""Which trackers there are, and whether their libraries are installed."""

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from batchgrowth.errors import Fault, SpecError

from batchgrowth_trainer.sinks.trackers.tracker import Tracker


@dataclass(frozen=True, slots=True)
class Entry:
    """A tracker: the extra and the package that it needs, and its class, "package.module:name"."""

    extra: str
    package: str
    implementation: str

    def load(self) -> Tracker:
        """The tracker. Raises whatever its library raises while it is imported."""
        made: Tracker = pkgutil.resolve_name(f"{__package__}.{self.implementation}")()
        return made


ENTRIES = {
    "TensorBoard": Entry("tensorboard", "tensorboard", "tensor_board:TensorBoard"),
    "MLflow": Entry("mlflow", "mlflow", "ml_flow:MLflow"),
    "WeightsAndBiases": Entry("wandb", "wandb", "weights_and_biases:WeightsAndBiases"),
}
"""The names that spec.trackers takes."""


def check_installed(names: Sequence[str]) -> None:
    """Raises SpecError, naming the extra, if the library of one of these trackers is missing."""
    missing = [name for name in names if not _is_there(ENTRIES[name].package)]
    if missing:
        raise SpecError([_fault(name, ENTRIES[name]) for name in missing])


def _is_there(package: str) -> bool:
    found = find_spec(package)
    return found is not None and found.origin is not None  # a folder `wandb` in the current one is a package too


def _fault(name: str, entry: Entry) -> Fault:
    given = f"{name} needs the package {entry.package}, which is not installed"
    remedy = (
        f"pip install 'batchgrowth[{entry.extra}]', use an image that has it (docs/trackers.md), or remove {name} here"
    )
    return Fault("spec.trackers", given, remedy)
