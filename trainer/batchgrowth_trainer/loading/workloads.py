"""Calls the function that a manifest names; a fault of the user's code is reported in one paragraph."""

import inspect
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import dask
import numpy as np
import torch
from batchgrowth.errors import DataError, WorkloadError

from batchgrowth_trainer.blame import (
    FAULTS,
    ReadFault,
    advice_for,
    begin,
    described,
    may_pass,
    reason,
    seen_at,
    workload_error,
)
from batchgrowth_trainer.loading.checks import check_workload
from batchgrowth_trainer.loading.entrypoints import find_function
from batchgrowth_trainer.workload import Workload

_OF_A_STRING = re.compile(r"\bstr\b|empty\(\) received an invalid combination")
"""What Python and torch say of a string where a number is needed."""
_BY_CALL = "call it in Python to see the whole traceback"
_BY_CHECKS = "call it in Python, then len() of its data sets and state_dict() of its model, to see the whole traceback"


def load_workload(entrypoint: str, arguments: Mapping[str, str], *, seed: int, examples: int | None) -> Workload:
    """The workload that `package.module:function` builds from `arguments`, checked.

    The generators of random, numpy and torch are seeded with `seed` first, so that every worker builds the same
    initial model. `examples` is the size of the training set in the manifest, None if it is not given.
    Raises WorkloadError for a fault in the user's code, DataError if data is missing or has another size, and a
    WorkerFault for an error that another worker may not have.
    """
    function = find_function(entrypoint)
    begin(function)
    _check_arguments(function, entrypoint, arguments)
    _seed_everything(seed)
    workload = _called(function, entrypoint, arguments)
    with _reported(f"{entrypoint}: checking what it returned", arguments, _BY_CHECKS):
        try:
            check_workload(workload, entrypoint)
        except WorkloadError as error:
            raise WorkloadError(f"{error}{seen_at(function)}") from None
        if examples is not None and len(workload.train) != examples:
            raise DataError(
                f"workload.examples: {examples} was given but {entrypoint} has {len(workload.train)}; "
                f"set workload.examples: {len(workload.train)}"
            )
    return workload


def _check_arguments(function: Callable[..., Any], entrypoint: str, arguments: Mapping[str, str]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some callables written in C have no signature; calling them finds the fault
    takes = signature.parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    unknown = [] if takes_any else sorted(set(arguments) - set(takes))
    if unknown:
        raise WorkloadError(
            f"workload.arguments.{unknown[0]}: {entrypoint} takes no such argument; "
            f"it takes {', '.join(takes) or 'none'}"
        )
    missing = [name for name, parameter in takes.items() if name not in arguments and _is_needed(parameter)]
    if missing:
        raise WorkloadError(f"workload.arguments.{missing[0]}: {entrypoint} needs it and none was given; add it")


def _is_needed(parameter: inspect.Parameter) -> bool:
    named = parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return named and parameter.default is inspect.Parameter.empty


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _called(function: Callable[..., Any], entrypoint: str, arguments: Mapping[str, str]) -> Workload:
    with _reported(entrypoint, arguments, _BY_CALL):
        workload = function(**arguments)
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"workload.entrypoint: {entrypoint} returned a {type(workload).__name__}; "
            f"return batchgrowth_trainer.workload.Workload(model=…, loss=…, train=…){seen_at(function)}"
        )
    return workload


@contextmanager
def _reported(what: str, arguments: Mapping[str, str], by_default: str) -> Iterator[None]:
    """Turn what the user's code raises inside the block into the errors of load_workload; those themselves pass."""
    try:
        with dask.config.set(scheduler="synchronous"):  # or a worker would send what it computes to its own cluster
            yield
    except (DataError, WorkloadError):
        raise
    except FileNotFoundError as error:
        raise DataError(f"{what}: a file is missing: {reason(error)}; {advice_for(error)}") from error
    except FAULTS as error:
        remedy = _remedy(error, arguments) or by_default
        if may_pass(error):
            raise ReadFault(described(what, error, remedy), type(error).__name__) from error
        raise workload_error(what, error, remedy) from error


def _remedy(error: BaseException, arguments: Mapping[str, str]) -> str | None:
    """What helps if the workload's function, or an object that it returned, raises this; None if nothing is known."""
    if isinstance(error, TypeError) and arguments and _OF_A_STRING.search(str(error)):
        return f"arguments are strings, so convert them, as in int({next(iter(arguments))})"
    if isinstance(error, TypeError) and str(error).startswith(Workload.__name__):
        return f"Workload takes {', '.join(field.name for field in fields(Workload))}"
    return advice_for(error)
