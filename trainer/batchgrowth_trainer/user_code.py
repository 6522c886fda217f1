"""Loads the user's code that a manifest names by an entrypoint: the workload, which is checked, and a growth rule."""

import difflib
import hashlib
import importlib
import inspect
import linecache
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import numpy as np
import torch
from batchgrowth.choices.growth_measured import CustomBlock, CustomRule
from batchgrowth.errors import DataError, WorkloadError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import IterableDataset

from batchgrowth_trainer.record import functions
from batchgrowth_trainer.record.history import EVALUATION_HEADER
from batchgrowth_trainer.record.storage import may_pass
from batchgrowth_trainer.user_errors import (
    FAULTS,
    ReadFault,
    advice_for,
    begin,
    described,
    is_users,
    reason,
    seen_at,
    workload_error,
)
from batchgrowth_trainer.workload import Dataset, Workload

__all__ = ["begin_job", "code_digests", "find_function", "find_modules_in", "load_workload", "seed_for_model"]

_LOADED: dict[str, ModuleType] = {}
"""The user's modules that this process has imported for its present job."""
_DIGESTS: dict[str, str] = {}
"""The digests of their sources, by the path from the folder in which they were found."""
_FOLDERS: list[str] = []
"""The folders that a job has put in front of sys.path."""
_KNOWN: set[str] = set()
"""The modules that were loaded when the job began."""
_IMPORT_SEED = [0]
"""The seed of the generators when a module is imported: that of the job's model."""


def begin_job(seed: int, folders: Iterable[str] = (), function: bytes = b"", *, is_worker: bool = False) -> None:
    """Give this process the user's code of a job: forget the modules of the job before it, and receive its `function`.

    A worker may have run other jobs, whose modules have the same names, and files may have been edited since. `seed` is
    that of the job's model, and modules are looked for in `folders` first. A process that `is_worker` also forgets
    modules that the job before imported while it trained; in another process, the user may have imported them.
    """
    if is_worker:
        for name in sys.modules.keys() - _KNOWN:
            if any(Path(folder) in Path(_file_of(sys.modules[name])).parents for folder in _FOLDERS):
                _note_module(name, sys.modules[name])
    for name, module in _LOADED.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _LOADED.clear()
    _DIGESTS.clear()
    functions.forget_received()
    for folder in _FOLDERS:
        if folder in sys.path:
            sys.path.remove(folder)
    _FOLDERS.clear()
    find_modules_in(folders)
    # Files may have been written since this process last looked into their folders, or quoted a line of theirs.
    importlib.invalidate_caches()
    linecache.checkcache()
    _IMPORT_SEED[0] = seed
    _KNOWN.clear()
    _KNOWN.update(sys.modules)
    if function:
        with _importing():
            functions.receive(function)


def code_digests() -> Mapping[str, str]:
    """Return the digests of the sources of the user's modules that the job has imported, 16 hexadecimal digits by file.

    A function that has no module is not among them: its entrypoint has its digest.
    """
    return dict(sorted(_DIGESTS.items()))


def seed_for_model(seed: int) -> None:
    """Seed the generators from which code draws while it is imported, and while it makes the model."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def _importing() -> Iterator[None]:
    """Seed the generators, and note the user's modules that the block imports.

    Python writes no compiled file meanwhile, since it would use that even after an edit in the same second that keeps
    the source's size.
    """
    before = set(sys.modules)
    writes_none = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        seed_for_model(_IMPORT_SEED[0])
        yield
    finally:
        sys.dont_write_bytecode = writes_none
        for name in sys.modules.keys() - before:
            _note_module(name, sys.modules[name])


def _note_module(name: str, module: ModuleType) -> None:
    """Note a module that was imported, if it is the user's."""
    file = _file_of(module)
    # In a checkout, our packages are beside the user's folders.
    if name == "__main__" or name.partition(".")[0].startswith("batchgrowth") or not is_users(file):
        return
    _LOADED[name] = module
    depth = name.count(".") + 1 + hasattr(module, "__path__")
    with suppress(OSError):  # a folder without an __init__.py
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
        _DIGESTS["/".join(Path(file).parts[-depth:])] = digest


def _file_of(module: ModuleType) -> str:
    """Return the path of a module's file; of a folder without an __init__.py, the path that such a file would have."""
    folders = list(getattr(module, "__path__", ()))
    in_folder = f"{folders[0]}/__init__.py" if folders else "<built in>"
    return getattr(module, "__file__", None) or in_folder


def find_function(entrypoint: str, field: str = "workload.entrypoint") -> Callable[..., Any]:
    """Return the function or class that an entrypoint names. Raises WorkloadError, which names `field`, if there is
    none.
    """
    module_name, colon, name = entrypoint.partition(":")
    if not (module_name and colon and name):
        raise WorkloadError(f"{field}: {entrypoint!r} was given; write package.module:function")
    if functions.is_function(entrypoint):
        return functions.found(entrypoint, field)
    module = _imported(module_name, entrypoint, field)
    function = getattr(module, name, None)
    if function is None:
        raise WorkloadError(f"{field}: {module_name} has no {name!r}; {_hidden(module) or _near(name, module)}")
    if not callable(function):
        raise WorkloadError(f"{field}: {entrypoint} is a {type(function).__name__}; name a function")
    return function  # type: ignore[no-any-return]


def custom_rule(settings: CustomBlock) -> CustomRule:
    """Return the growth rule with the function that `batch.growth.custom` names. Raises WorkloadError if there is none.

    The entry of Custom in choices/growth_measured.py names this function.
    """
    return CustomRule(find_function(settings.entrypoint, "batch.growth.custom.entrypoint"))


def find_modules_in(folders: Iterable[str]) -> None:
    """Let this process look for users' modules in these folders first."""
    new = [folder for folder in folders if folder not in sys.path]
    sys.path[:0] = new
    _FOLDERS.extend(new)


def _imported(module_name: str, entrypoint: str, field: str) -> ModuleType:
    try:
        with _importing():
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise WorkloadError(_import_failed(module_name, error, field)) from error
        raise WorkloadError(
            f"{field}: no module named {error.name!r} for {entrypoint!r}; looked in "
            f"{', '.join(entry or '.' for entry in sys.path[:4])}, …; put {module_name.split('.')[0]}.py beside the "
            "manifest, run from its folder, or install its package; in pods, docs/own-code.md says how it gets there"
        ) from error
    except FAULTS as error:
        raise WorkloadError(_import_failed(module_name, error, field)) from error


def _import_failed(module_name: str, error: BaseException, field: str) -> str:
    remedy = advice_for(error) or f"import {module_name} in Python to see the whole traceback"
    return described(f"{field}: importing {module_name}", error, remedy)


def _hidden(module: ModuleType) -> str:
    """Return what helps if the user has a file of this module's name that Python does not import; empty if not."""
    parts = module.__name__.split(".")
    for folder in sys.path:
        for file in (Path(folder, *parts).with_suffix(".py"), Path(folder, *parts, "__init__.py")):
            if not file.is_file():
                continue
            found = getattr(module, "__file__", None)
            if found is not None and Path(found).exists() and file.samefile(found):
                return ""
            own = "a module of Python's own" if parts[0] in sys.stdlib_module_names else f"that of {found}"
            return f"{file} is not imported by this name, since {module.__name__} is {own}; rename the file"
    return ""


def _near(name: str, module: ModuleType) -> str:
    own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    close = difflib.get_close_matches(name, own, n=3)
    defined = sorted(key for key in own if getattr(vars(module)[key], "__module__", None) == module.__name__)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if defined:
        return f"it defines {', '.join(defined)}"
    return "it defines no function"


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
    """Raise WorkloadError for an untrainable model, a value that is not a function, a bad name, or unusable data."""
    _check_model(workload, entrypoint)
    _check_functions(workload, entrypoint)
    _check_columns(workload, entrypoint)
    _check_data(workload, entrypoint)


def _check_model(workload: Workload, entrypoint: str) -> None:
    model = workload.model
    if not isinstance(model, nn.Module):
        raise WorkloadError(f"{entrypoint}: model is {_what(model)}; give a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(
            f"{entrypoint}: no parameter of the model needs a gradient, so there is nothing to "
            "train; call requires_grad_(True) on those that should be trained"
        )
    _check_tensors(model, "model", entrypoint)
    if workload.loss_module is not None:
        _check_loss(model, workload.loss_module, entrypoint)


def _check_loss(model: nn.Module, loss: nn.Module, entrypoint: str) -> None:
    """Raise WorkloadError for a loss that cannot be trained with the model."""
    _check_tensors(loss, "loss", entrypoint)
    both = [name for name in loss.state_dict() if f"loss.{name}" in model.state_dict()]
    if both:
        raise WorkloadError(
            f"{entrypoint}: loss.{both[0]} is in the model, and in the loss as {both[0]}, so one name would stand for "
            "two tensors; give the model's module another name than `loss`"
        )


def _check_tensors(module: nn.Module, called: str, entrypoint: str) -> None:
    """Raise WorkloadError for parameters or buffers of the model, or of the loss, that cannot be trained or saved."""
    _check_all_found(module, called, entrypoint)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise WorkloadError(
                f"{entrypoint}: {called}.{name} has no shape yet, since its module is lazy; call the {called} once "
                "with an example before returning it, or give the module its sizes"
            )
        if tensor.is_meta:
            raise WorkloadError(
                f"{entrypoint}: {called}.{name} is on the device meta, and so has no numbers; make the {called} "
                "outside of torch.device('meta'), or fill what to_empty(device='cpu') makes of it"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise WorkloadError(
                f"{entrypoint}: {called}.{name} is {'quantized' if tensor.is_quantized else tensor.layout}, and no "
                "file of weights holds such a tensor; register to_dense() of it, or its parts as buffers of their own "
                "(indices and values, from which forward makes it)"
            )
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dtype is not torch.float32:
            remedy = f"call {called}.float()"
            if parameter.is_complex():
                remedy = "hold it as two numbers, of which forward makes one by torch.view_as_complex"
            raise WorkloadError(
                f"{entrypoint}: {called}.{name} is {parameter.dtype}; parameters must be torch.float32: {remedy}"
            )
    for name, buffer in module.named_buffers():
        if buffer.is_complex() or buffer.dtype in _UNFIT_FOR_BUFFERS:
            raise WorkloadError(
                f"{entrypoint}: the buffer {called}.{name} is {buffer.dtype}, whose changes cannot be averaged over "
                "the shards; give it a float of 16 to 64 bits, a signed integer, uint8 or bool"
            )
    _check_state(module, called, entrypoint)


def _check_state(module: nn.Module, called: str, entrypoint: str) -> None:
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise WorkloadError(
                f"{entrypoint}: {called}.state_dict() has {_what(value)} under {name}, and weights are written as "
                "safetensors, which hold tensors alone; keep it in a buffer, by register_buffer, or leave out "
                "get_extra_state and what else adds it"
            )
        if not _is_writable(value.dtype):
            raise WorkloadError(
                f"{entrypoint}: {called}.{name} is {value.dtype}, which safetensors, as weights are written, do not "
                "hold; give it another dtype, such as torch.complex64 for torch.complex128"
            )


@lru_cache
def _is_writable(dtype: torch.dtype) -> bool:
    """Return whether a file of weights can hold tensors of this dtype."""
    from safetensors.torch import save

    # By trying: which dtypes there are depends on the version of safetensors.
    try:
        save({"": torch.empty(1, dtype=dtype).clone()})
    except (KeyError, NotImplementedError, RuntimeError):
        return False
    return True


def _check_all_found(root: nn.Module, called: str, entrypoint: str) -> None:
    """Raise WorkloadError for layers in a list, tuple or dict: torch does not find them, so it would not train them."""
    found = {id(parameter) for parameter in root.parameters()}
    for path, module in root.named_modules():
        for key, held in vars(module).items():
            if not isinstance(held, Mapping | list | tuple):
                continue
            for layer in held.values() if isinstance(held, Mapping) else held:
                if not isinstance(layer, nn.Module):
                    continue
                if any(p.requires_grad and id(p) not in found for p in layer.parameters()):
                    name = f"{path}.{key}" if path else key
                    raise WorkloadError(
                        f"{entrypoint}: {called}.{name} is a {type(held).__name__} of modules, which torch does not "
                        "find, so they would not be trained; make it an nn.ModuleList or nn.ModuleDict, or call "
                        "requires_grad_(False) on them"
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
    if isinstance(value, type):
        return f"the class {value.__name__} and no object of it"
    return f"a {type(value).__name__}"


def _check_columns(workload: Workload, entrypoint: str) -> None:
    both = [name for name in workload.metrics if name in workload.whole_set_metrics]
    if both:
        raise WorkloadError(f"{entrypoint}: {both[0]} is in metrics and in whole_set_metrics; rename one of them")
    for name in (*workload.metrics, *workload.whole_set_metrics):
        # The values of a named test set have columns of the form NAME.VALUE.
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
    sets: dict[str, Any] = {"train": workload.train}
    for name, dataset in workload.test_sets.items():
        if name != "" and not _is_name(name):
            raise WorkloadError(
                f"{entrypoint}: a test set is named {name!r}; write letters, digits, '_', '-' and '.', a letter first"
            )
        sets[f"test.{name}" if name else "test"] = dataset
    for name, dataset in sets.items():
        arrays = isinstance(dataset, tuple) and all(hasattr(part, "shape") for part in dataset)
        kind = "tuple of arrays" if arrays and dataset else type(dataset).__name__
        if not isinstance(dataset, Dataset) or isinstance(dataset, IterableDataset) or kind in _NO_DATA_SETS:
            wanted = _NO_DATA_SETS.get(kind) or (
                "give a map-style data set with __len__ and __getitem__ (a stream has no order that a seed can fix)"
            )
            raise WorkloadError(f"{entrypoint}: {name} is {_what(dataset)}; {wanted}")
        if len(dataset) == 0:
            raise WorkloadError(f"{entrypoint}: {name} holds no example; leave test out or give at least one")


def _is_name(given: object) -> bool:
    return isinstance(given, str) and METRIC_NAME.fullmatch(given) is not None


_OF_A_STRING = re.compile(r"\bstr\b|empty\(\) received an invalid combination")
"""What Python and torch say if they get a string in place of a number."""
_BY_CALL = "call it in Python to see the whole traceback"
_BY_CHECKS = "call it in Python, then len() of its data sets and state_dict() of its model, to see the whole traceback"


def load_workload(entrypoint: str, arguments: Mapping[str, str], *, seed: int, examples: int | None) -> Workload:
    """Return the workload that `package.module:function` builds from `arguments`, checked.

    The generators of random, numpy and torch are seeded with `seed` before the module is imported and again before the
    function is called, so that every worker has the same data and the same initial model. `examples` is the size of the
    training set in the manifest, None if it is not given.
    Raises WorkloadError for a fault in the user's code, DataError if data is missing or has another size, and a
    WorkerFault for an error that another worker may not have.
    """
    _IMPORT_SEED[0] = seed
    function = find_function(entrypoint)
    begin(function)
    _check_arguments(function, entrypoint, arguments)
    with _importing(), _reported(entrypoint, arguments, _BY_CALL):  # a function may import, too
        workload = function(**arguments)
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"workload.entrypoint: {entrypoint} returned a {type(workload).__name__}; "
            f"return batchgrowth_trainer.workload.Workload(model=…, loss=…, train=…){seen_at(function)}"
        )
    with _reported(f"{entrypoint}: checking what it returned", arguments, _BY_CHECKS):
        try:
            check_workload(workload, entrypoint)
        except WorkloadError as error:
            # The fault is in what the function has returned, so no line of the traceback is the user's.
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
    unknown = sorted(set(arguments) - set(takes))
    if unknown and not takes_any:
        raise WorkloadError(
            f"workload.arguments.{unknown[0]}: {entrypoint} takes no such argument; "
            f"it takes {', '.join(takes) or 'none'}"
        )
    for name, parameter in takes.items():
        by_name = parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        if name not in arguments and by_name and parameter.default is inspect.Parameter.empty:
            raise WorkloadError(f"workload.arguments.{name}: {entrypoint} needs it and none was given; add it")


@contextmanager
def _reported(what: str, arguments: Mapping[str, str], by_default: str) -> Iterator[None]:
    """Turn exceptions of the user's code inside the block into the errors that load_workload raises."""
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
    """Return a remedy for an exception of the workload's function or of an object that it returned; None if unknown."""
    if isinstance(error, TypeError) and arguments and _OF_A_STRING.search(str(error)):
        return f"arguments are strings, so convert them, as in int({next(iter(arguments))})"
    if isinstance(error, TypeError) and str(error).startswith(Workload.__name__):
        return f"Workload takes {', '.join(field.name for field in fields(Workload))}"
    return advice_for(error)
