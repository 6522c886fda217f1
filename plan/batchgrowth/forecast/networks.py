"""Named constants, which are those of the paper's simulations, and constants in a file."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from batchgrowth.errors import Fault, SpecError
from batchgrowth.forecast.step_time import DEFAULT_ERROR, Constants, Number, StepTime
from batchgrowth.manifest.files import open_given

LARGEST_BYTES = 1 << 20
"""The largest file of constants that is read."""

PAPER_BYTES = 4 * 2_751_146
"""The bytes of a gradient of the paper's WRN 16-4 with 2,751,146 weights of 4 bytes."""
GRADIENT_SECONDS = 0.07832
"""A T4's time for the gradient of PAPER_EXAMPLES, by the paper's simulator."""
PAPER_EXAMPLES = 128
COPY_SECONDS = 0.05855
"""The time to copy the model, with which each task of the paper's centralized architecture begins."""
MODERATE_SECONDS = 0.00155
HIGH_SECONDS = 0.000127488
"""The time of an all-reduce of PAPER_BYTES per doubling of the workers, at 54 and at 800 Gb/s."""
DASK_OVERHEAD = (
    (1, 0.0156), (2, 0.0195), (5, 0.0351), (10, 0.0541), (25, 0.102), (40, 0.1435), (125, 0.3195),
)  # fmt: skip
"""Workers -> the seconds that Dask and its client added to each simulated update of the paper."""

PAPER_ERROR = 0.005
"""The relative error of the paper's constants about its published minutes."""

_T4 = StepTime(per_example=GRADIENT_SECONDS / PAPER_EXAMPLES)
_CENTRALIZED = replace(_T4, per_update=COPY_SECONDS)
_MODERATE = replace(_T4, per_doubling=MODERATE_SECONDS)
_HIGH = replace(_T4, per_doubling=HIGH_SECONDS)
_T4_NOTE = (
    "computing is that of the paper, a WRN 16-4 on a T4 with 78.32 ms for 128 examples; "
    "--measure or --fit gives that of your model"
)

_PAPER = {"centralized": _CENTRALIZED, "moderate": _MODERATE, "high": _HIGH}
NETWORKS = ("moderate", "high", "paper")
"""The networks that have a name."""


def named(name: str) -> tuple[Constants, ...]:
    """Return the constants of one of NETWORKS; the paper has three, one for each column of its Table 2."""
    if name == "paper":
        return tuple(
            Constants(
                label=label,
                step=replace(step, overhead=DASK_OVERHEAD, whole_batches=True),
                error=PAPER_ERROR,
                source="the simulator of Holt and Sievert, 2021",
            )
            for label, step in _PAPER.items()
        )
    return (
        Constants(
            label=name,
            step=_PAPER[name],
            gradient_bytes=PAPER_BYTES,
            source=f"the {name} network of Holt and Sievert, 2021",
            notes=(_T4_NOTE,),
        ),
    )


_OF_EXCHANGES = ("per_group", "per_doubling", "per_worker")
"""The constants of a step time that make up the exchange."""


def exchanging(network: Constants, times: float) -> Constants:
    """Return the constants of a network if an update has that many exchanges on average."""
    parts = {name: getattr(network.step, name) * times for name in _OF_EXCHANGES}
    return replace(network, step=replace(network.step, **parts))


def with_network(constants: Constants, network: Constants, gradient_bytes: int | None) -> Constants:
    """Return the constants with the network's exchange in place of their own; the time of computing stays.

    The exchange is scaled to a gradient of `gradient_bytes`, unless that or the network's own size is None.
    """
    scale = 1.0
    if gradient_bytes is not None and network.gradient_bytes is not None:
        scale = gradient_bytes / network.gradient_bytes
    parts = {name: getattr(network.step, name) * scale for name in _OF_EXCHANGES}
    return replace(
        constants,
        label=f"{constants.label}, {network.label}",
        step=replace(constants.step, **parts),
        draws=tuple(replace(draw, **parts) for draw in constants.draws),
        source=f"{constants.source}; the exchange is that of {network.source}",
        seen_workers=frozenset(),  # the number of workers matters to the exchange alone
        exchange_note="",
    )


class ConstantsFile(BaseModel):
    """A file of constants: a step time, and optionally its relative error and a label."""

    model_config: ClassVar = ConfigDict(extra="forbid", alias_generator=to_camel)

    step_time: StepTime
    error: Annotated[float, Field(gt=0, le=2, allow_inf_nan=False), Number] = DEFAULT_ERROR
    label: Annotated[str, Field(min_length=1, max_length=60)] = "file"


def read_constants(path: Path) -> Constants:
    """Return the constants in a YAML or JSON file.

    Raises SpecError, naming the field and a remedy, if it cannot be read or has faults.
    """
    try:
        with open_given(path) as file:
            text = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        names = ", ".join(NETWORKS)
        raise SpecError(
            [Fault(f"--network {path}", f"cannot be read ({reason})", f"give {names} or the path of a file")]
        ) from error
    if len(text) > LARGEST_BYTES:
        raise SpecError([Fault(str(path), f"more than {LARGEST_BYTES:,} bytes", "give a file of constants")])
    try:
        read = ConstantsFile.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(_faults(path, error)) from error
    _check_table(path, read.step_time)
    return Constants(label=read.label, step=read.step_time, error=read.error, source=str(path))


def _check_table(path: Path, step: StepTime) -> None:
    workers = [count for count, _ in step.overhead]
    if workers != sorted(set(workers)):
        raise SpecError([Fault(f"{path}: stepTime.overhead", f"workers {workers}", "give them in increasing order")])
    without_constants = StepTime(
        overhead=step.overhead,
        slots=step.slots,
        whole_batches=step.whole_batches,
        lone_exchange=step.lone_exchange,
    )
    if step == without_constants:
        raise SpecError(
            [Fault(f"{path}: stepTime", "no constant above 0", "give perExample, the seconds that an example takes")]
        )


def _faults(path: Path, error: Exception) -> list[Fault]:
    if not isinstance(error, ValidationError):
        return [Fault(str(path), "no YAML", "give stepTime: {perExample: 0.0006}, in seconds")]
    faults = []
    for found in error.errors(include_url=False):
        name = ".".join(map(str, found["loc"])) or "the file"
        if found["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            known = ", ".join(sorted(to_camel(field) for field in StepTime.__slots__))
            faults.append(
                Fault(f"{path}: {name}", "not known", f"give stepTime, error and label; stepTime has {known}")
            )
        elif found["type"] == "missing":
            faults.append(Fault(f"{path}: {name}", "missing", "give {perExample: 0.0006}, in seconds"))
        else:
            remedy = found["msg"].removeprefix("Input should be ")
            faults.append(Fault(f"{path}: {name}", f"{found['input']!r:.60}", f"give {remedy}"))
    return faults
