"""The parameters of an estimator, and the job that they describe: the same as a manifest's, with the same bits.

The names of parameters, nested ones included, are those that scikit-learn's tools use.
"""

import inspect
import json
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any, Self

import torch
from batchgrowth.choices import OPTIMIZERS
from batchgrowth.errors import Fault, SpecError
from batchgrowth.manifest.keywords import job_of
from batchgrowth.spec import BatchGrowthJob
from dask.system import CPU_COUNT
from sklearn.base import BaseEstimator

from batchgrowth_trainer.dampers import damper_of
from batchgrowth_trainer.record.functions import importable_name

PREFIXES = ("module", "loss", "optimizer", "batch_size")
"""The parameters whose own parameters are given as PREFIX__NAME."""
_NESTED = re.compile(rf"({'|'.join(PREFIXES)})__(\w+)")
_MOST_WORKERS = 8
"""The most workers if `max_workers` does not say."""


class NestedParameters(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose `module`, `loss`, `optimizer` and `batch_size` have parameters of their own, as module__NAME.

    Which nested parameters there are depends on the user's class, so scikit-learn cannot read them from __init__.
    """

    _nested: dict[str, Any]
    """What __init__ was given beyond its own parameters; `_check_nested` looks at the names."""

    def _check_nested(self) -> None:
        """Raise SpecError for a parameter that is neither one of __init__ nor nested."""
        for name, value in self._nested.items():
            if _NESTED.fullmatch(name) is None:
                raise SpecError([Fault(name, f"{value!r} was given, and there is no such parameter", self._which())])

    def nested(self, prefix: str) -> dict[str, Any]:
        """Return the parameters given as PREFIX__NAME, by NAME."""
        begin = f"{prefix}__"
        return {name.removeprefix(begin): value for name, value in self._nested.items() if name.startswith(begin)}

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """Return the parameters with their values, the nested ones too."""
        params: dict[str, Any] = {name: getattr(self, name) for name in self._get_param_names()}
        return params | dict(sorted(self._nested.items()))

    def set_params(self, **params: Any) -> Self:
        """Set parameters, the nested ones too, and return self. Raises ValueError for an unknown name."""
        own = self._get_param_names()
        for name in params:
            if name not in own and name not in self._nested and _NESTED.fullmatch(name) is None:
                raise ValueError(f"Invalid parameter {name!r} for estimator {type(self).__name__}: {self._which()}")
        for name, value in params.items():
            if name in own:
                setattr(self, name, value)
            else:
                self._nested[name] = value
        return self

    def _which(self) -> str:
        others = ", ".join(f"{prefix}__NAME" for prefix in PREFIXES)
        return f"give one of {', '.join(self._get_param_names())}, or {others}"


# The field of a job -> the parameter that an error names in its place; the first that fits.
_PARAMETERS = (
    (re.compile(r"\bbatch\.growth\.\w+\.every_epochs\b"), "batch_size__delay"),
    (re.compile(r"\bbatch\.growth\.linear\.examples_per_update\b"), "batch_size__rate"),
    (re.compile(r"\bbatch\.growth\.(?:linear|looks)\.every_updates\b"), "batch_size__dwell"),
    (re.compile(r"\bbatch\.growth\.type\b"), "batch_size"),
    (re.compile(r"\b(?:batch\.)?growth\.(?!type)\w+\.(\w+)"), r"batch_size__\1"),
    (re.compile(r"\bbatch\.initial\b"), "batch_size__initial"),
    (re.compile(r"\bbatch\.maximum\b"), "max_batch_size"),
    (re.compile(r"\bbatch\.shard\b|\bworkers\.examples_per_worker\b"), "grads_per_worker"),
    (re.compile(r"\bworkers\.minimum\b"), "min_workers"),
    (re.compile(r"\bworkers\.maximum\b"), "max_workers"),
    (re.compile(r"\blearning_rate\.initial\b"), "optimizer__lr"),
    (re.compile(r"\boptimizer\.(?!type|torch)\w+\.(\w+)"), r"optimizer__\1"),
    (re.compile(r"\bworkload\.device\b"), "device"),
    (re.compile(r"\bspec\.epochs\b|^epochs\b"), "max_epochs"),
    (re.compile(r"\bspec\.seed\b|^seed\b"), "random_state"),
)  # fmt: skip

# --- The optimizer ---

_OWN = {
    torch.optim.SGD: ("SGD", {"momentum": "momentum", "nesterov": "nesterov", "weight_decay": "weight_decay"}),
    torch.optim.Adagrad: ("Adagrad", {"eps": "epsilon", "weight_decay": "weight_decay"}),
    torch.optim.RMSprop: (
        "RMSprop",
        {"alpha": "alpha", "eps": "epsilon", "momentum": "momentum", "centered": "centered",
         "weight_decay": "weight_decay"},
    ),
    torch.optim.Adam: ("Adam", {"betas": "betas", "eps": "epsilon", "weight_decay": "weight_decay"}),
    torch.optim.AdamW: ("AdamW", {"betas": "betas", "eps": "epsilon", "weight_decay": "weight_decay"}),
}  # fmt: skip
"""Torch's optimizers that a manifest has by name, with the arguments that it has: faster, with the same bits."""
_RATE = 1e-3
"""The learning rate of an optimizer that is given by name, without `optimizer__lr`."""


def optimizer_of(optimizer: Any, settings: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return `optimizer` and `learning_rate.initial` of the job. Raises SpecError, which names the parameter."""
    own = dict(settings)
    rate = own.pop("lr", None)
    if rate is not None and (not isinstance(rate, Real) or isinstance(rate, bool)):
        raise SpecError([Fault("optimizer__lr", f"{rate!r} was given", "give a number more than 0")])
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            remedy = (
                f"give one of {', '.join(name for name in OPTIMIZERS if name != 'Torch')}, or a class of torch.optim"
            )
            raise SpecError([Fault("optimizer", f"{optimizer!r} was given", remedy)])
        block: dict[str, Any] = {"type": optimizer}
        if own:
            block[OPTIMIZERS[optimizer].block_name] = own
        return block, _RATE if rate is None else float(rate)
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        given = f"a {type(optimizer).__name__} was given"
        if isinstance(optimizer, type):
            given = f"the class {optimizer.__name__} was given"
        raise SpecError([Fault("optimizer", given, "give a class of torch.optim, such as torch.optim.SGD")])
    parameters = inspect.signature(optimizer).parameters
    takes = [name for name in parameters if name not in ("params", "lr")]
    for name in own:
        if name not in takes:
            listed = ", ".join(["lr", *takes])
            raise SpecError(
                [Fault(f"optimizer__{name}", f"{optimizer.__name__} takes no such argument", f"it takes {listed}")]
            )
    if rate is None:
        rate = parameters["lr"].default if "lr" in parameters else None
        if not isinstance(rate, Real):
            raise SpecError([Fault("optimizer__lr", f"not given, and {optimizer.__name__} has no default", "give it")])
    return _block_of(optimizer, own), float(rate)


def _block_of(optimizer: type[torch.optim.Optimizer], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block of a class of torch: by its own name if the manifest has all its settings, else Torch."""
    name, fields = _OWN.get(optimizer, ("", {}))
    if name and settings.keys() <= fields.keys():
        values = {fields[key]: value for key, value in settings.items()}
        if "betas" in values:
            values["beta1"], values["beta2"] = values.pop("betas")
        return {"type": name, OPTIMIZERS[name].block_name: values} if values else {"type": name}
    where = importable_name(optimizer)
    if where is None:
        given = f"{optimizer.__name__}, which no module has, was given"
        raise SpecError([Fault("optimizer", given, "put the class into a module that workers can import")])
    try:
        arguments = {key: json.dumps(value) for key, value in settings.items()}
    except TypeError as error:
        raise SpecError(
            [Fault("optimizer", f"an argument of {optimizer.__name__}: {error}", "give numbers, texts, lists")]
        ) from None
    block = {"optimizer": where, "arguments": arguments}
    # By its public name, which stays when torch moves a class to another of its files.
    if where.startswith("torch.optim."):
        block["optimizer"] = f"torch.optim:{optimizer.__name__}"
    return {"type": "Torch", "torch": block}


# --- The job ---


def job_with(
    estimator: NestedParameters, *, name: str, entrypoint: str, examples: int, epochs: int, seed: int
) -> BatchGrowthJob:
    """Return the job that the parameters describe, for a training set of so many examples.

    Fields in the parameter `spec` override the other parameters, and a type chosen there replaces theirs, with its
    settings. Raises SpecError with every fault, each with the name of its parameter.
    """
    damper = damper_of(estimator.batch_size, estimator.nested("batch_size"))
    optimizer, rate = optimizer_of(estimator.optimizer, estimator.nested("optimizer"))
    batch: dict[str, Any] = {"initial": damper.initial, "growth": damper.block()}
    most = estimator.max_batch_size
    if most is None:
        most = damper.initial
        if batch["growth"]["type"] != "Constant" and _is_number(damper.initial):
            most = max(damper.initial, examples)
    batch["maximum"] = most
    workers = estimator.max_workers
    if workers is None:
        # Without a cluster, workers share this machine, and more of them than processors would only wait.
        workers = _MOST_WORKERS if estimator.cluster is not None else min(_MOST_WORKERS, int(CPU_COUNT))
        if isinstance(estimator.min_workers, int):
            workers = max(workers, estimator.min_workers)
    workload: dict[str, Any] = {"entrypoint": entrypoint, "examples": examples, "device": _device(estimator.device)}
    spec: dict[str, Any] = {
        "seed": seed,
        "epochs": epochs,
        "batch": batch,
        "learning_rate": {"initial": rate},
        "optimizer": optimizer,
        "workers": {
            "examples_per_worker": estimator.grads_per_worker,
            "minimum": estimator.min_workers,
            "maximum": workers,
        },
        "workload": workload,
    }
    try:
        return job_of(name, estimator.spec or {}, spec)
    except SpecError as error:
        faults = [Fault(*map(in_parameters, (one.path, one.given, one.remedy))) for one in error.faults]
        if _is_number(estimator.batch_size):
            # The user gave a number, and no rule with a parameter `initial`.
            name = "batch_size__initial"
            faults = [Fault(one.path.replace(name, "batch_size"), one.given, one.remedy) for one in faults]
        raise SpecError(faults) from None


def in_parameters(text: str) -> str:
    """Return the text with an estimator's parameters in place of the fields of a job."""
    for pattern, name in _PARAMETERS:
        text = pattern.sub(name, text)
    return text


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _device(device: Any) -> str:
    """Return `workload.device` for a device as torch names it. Raises SpecError for any other."""
    names = {"auto": "Auto", "cpu": "CPU", "cuda": "CUDA"}
    kind = str(device).lower().partition(":")[0]
    if kind not in names:
        raise SpecError([Fault("device", f"{device!r} was given", "give auto, cpu or cuda")])
    return names[kind]
