"""Checks what a workload's function returned, before anything is computed with it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from batchgrowth.errors import WorkloadError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import IterableDataset

from batchgrowth_trainer.record.history import EVALUATION_HEADER
from batchgrowth_trainer.workload import Dataset, Workload

_UNFIT_FOR_BUFFERS = {
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2, torch.uint16, torch.uint32, torch.uint64,
}  # fmt: skip
_NO_DATA_SETS = {
    "DataLoader": "give its dataset; the trainer makes the batches",
    "Array": "give batchgrowth_trainer.DaskArrays(inputs, targets), or a data set of its rows",
    "tuple of arrays": "give TensorDataset(inputs, targets), or of Dask arrays batchgrowth_trainer.DaskArrays",
    "DataFrame": "give a data set of its rows, such as a TensorDataset of its columns",
} | dict.fromkeys(("Tensor", "ndarray", "memmap"), "give TensorDataset(inputs, targets), or a data set of its rows")
METRIC_NAME = re.compile(r"[A-Za-z][\w.-]*")


def check_workload(workload: Workload, entrypoint: str) -> None:
    """Raises WorkloadError for what cannot be trained, a function that is none, or data without a length."""
    _check_model(workload, entrypoint)
    _check_functions(workload, entrypoint)
    _check_columns(workload, entrypoint)
    _check_data(workload, entrypoint)


def _check_model(workload: Workload, entrypoint: str) -> None:
    model = workload.model
    if not isinstance(model, nn.Module):
        raise WorkloadError(f"{entrypoint}: model is {_what(model)}; give a torch.nn.Module")
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise WorkloadError(
            f"{entrypoint}: no parameter of the model needs a gradient, so there is nothing to "
            "train; call requires_grad_(True) on those that should be trained"
        )
    _check_all_found(model, entrypoint)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise WorkloadError(
                f"{entrypoint}: model.{name} has no shape yet, since its module is lazy; call the model once with an "
                "example before returning it, or give the module its sizes"
            )
    for name, parameter in trained:
        if parameter.dtype is not torch.float32:
            raise WorkloadError(
                f"{entrypoint}: model.{name} is {parameter.dtype}; parameters must be torch.float32: call model.float()"
            )
    for name, buffer in model.named_buffers():
        if buffer.is_complex() or buffer.dtype in _UNFIT_FOR_BUFFERS:
            raise WorkloadError(
                f"{entrypoint}: the buffer model.{name} is {buffer.dtype}, whose changes cannot be averaged over the "
                "shards; give it a float of 16 to 64 bits, a signed integer, uint8 or bool"
            )
    _check_state(model, entrypoint)


def _check_state(model: nn.Module, entrypoint: str) -> None:
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise WorkloadError(
                f"{entrypoint}: model.state_dict() has {_what(value)} under {name}, and weights are written as "
                "safetensors, which hold tensors alone; keep it in a buffer, by register_buffer, or leave out "
                "get_extra_state and what else adds it"
            )


def _check_all_found(model: nn.Module, entrypoint: str) -> None:
    """Raises WorkloadError for layers in a list, a tuple or a dict that torch does not find, and so does not train."""
    found = {id(parameter) for parameter in model.parameters()}
    for path, module in model.named_modules():
        for key, held in vars(module).items():
            values = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else ()
            layers = [layer for layer in values if isinstance(layer, nn.Module)]
            if any(p.requires_grad and id(p) not in found for layer in layers for p in layer.parameters()):
                name, kind = f"{path}.{key}" if path else key, type(held).__name__
                raise WorkloadError(
                    f"{entrypoint}: model.{name} is a {kind} of modules, which torch does not find, so they would not "
                    "be trained; make it an nn.ModuleList or nn.ModuleDict, or call requires_grad_(False) on them"
                )


def _check_functions(workload: Workload, entrypoint: str) -> None:
    for name in ("metrics", "whole_set_metrics"):
        given = getattr(workload, name)
        if not isinstance(given, Mapping):
            raise WorkloadError(
                f"{entrypoint}: {name} is {_what(given)}; give functions by name, as in "
                f"{name}={{'accuracy': correct}}, or leave it out"
            )
    functions = {
        "loss": workload.loss,
        **{f"metrics.{name}": function for name, function in workload.metrics.items()},
        **{f"whole_set_metrics.{name}": function for name, function in workload.whole_set_metrics.items()},
    }
    for name, function in functions.items():
        if not callable(function) or isinstance(function, type):
            result = "number" if name.startswith("whole_set") else "Tensor"
            raise WorkloadError(f"{entrypoint}: {name} is {_what(function)}; give (output, target) -> {result}")
    for name, kind in (
        ("augment", "inputs -> inputs"), ("collate", "list of examples -> (inputs, target)"),
        ("step", "(model, inputs, target) -> Tensor"),
    ):  # fmt: skip
        function = getattr(workload, name)
        if function is not None and not callable(function):
            raise WorkloadError(f"{entrypoint}: {name} is {_what(function)}; give {kind}")


def _what(value: object) -> str:
    return f"the class {value.__name__} and no object of it" if isinstance(value, type) else f"a {type(value).__name__}"


def _check_columns(workload: Workload, entrypoint: str) -> None:
    both = [name for name in workload.metrics if name in workload.whole_set_metrics]
    if both:
        raise WorkloadError(f"{entrypoint}: {both[0]} is in metrics and in whole_set_metrics; rename one of them")
    for name in (*workload.metrics, *workload.whole_set_metrics):
        for test in workload.test_sets:
            if test and str(name).startswith(f"{test}."):
                raise WorkloadError(
                    f"{entrypoint}: the metric {name!r} has the name of a value of the test set {test!r}; rename it"
                )
        if not _is_name(name) or name in EVALUATION_HEADER:
            raise WorkloadError(
                f"{entrypoint}: a metric is named {name!r}; write letters, digits, '_', '-' and '.', a letter first, "
                f"and none of {', '.join(EVALUATION_HEADER)}, which are columns of evaluations.csv already"
            )


def _check_data(workload: Workload, entrypoint: str) -> None:
    if isinstance(workload.test, Mapping) and not workload.test:
        raise WorkloadError(f"{entrypoint}: test is an empty mapping; give None, a data set, or data sets by name")
    for name, dataset in (("train", workload.train), *_named_test_sets(workload, entrypoint)):
        arrays = isinstance(dataset, tuple) and all(hasattr(part, "shape") for part in dataset)
        kind = "tuple of arrays" if arrays and dataset else type(dataset).__name__
        if not isinstance(dataset, Dataset) or isinstance(dataset, IterableDataset) or kind in _NO_DATA_SETS:
            wanted = _NO_DATA_SETS.get(kind) or (
                "give a map-style data set with __len__ and __getitem__ (a stream has no order that a seed can fix)"
            )
            raise WorkloadError(f"{entrypoint}: {name} is {_what(dataset)}; {wanted}")
        if len(dataset) == 0:
            raise WorkloadError(f"{entrypoint}: {name} holds no example; leave test out or give at least one")


def _named_test_sets(workload: Workload, entrypoint: str) -> Iterator[tuple[str, Any]]:
    for name, dataset in workload.test_sets.items():
        if name != "" and not _is_name(name):
            raise WorkloadError(
                f"{entrypoint}: a test set is named {name!r}; write letters, digits, '_', '-' and '.', a letter first"
            )
        yield f"test.{name}" if name else "test", dataset


def _is_name(given: object) -> bool:
    return isinstance(given, str) and METRIC_NAME.fullmatch(given) is not None
