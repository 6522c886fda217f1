"""Finds the function or class that an entrypoint, `package.module:function`, names."""

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from batchgrowth.errors import WorkloadError

from batchgrowth_trainer.blame import FAULTS, advice_for, described
from batchgrowth_trainer.record import functions


def find_function(entrypoint: str, field: str = "workload.entrypoint") -> Callable[..., Any]:
    """The function that an entrypoint, given in `field`, names. Raises WorkloadError if there is none."""
    module_name, colon, name = entrypoint.partition(":")
    if not (module_name and colon and name):
        raise WorkloadError(f"{field}: {entrypoint!r} was given; write package.module:function")
    if functions.is_function(entrypoint):
        return functions.found(entrypoint, field)
    module = _imported(module_name, entrypoint, field)
    function = getattr(module, name, None)
    if function is None:
        raise WorkloadError(f"{field}: {module_name} has no {name!r}; {_near(name, module)}")
    if not callable(function):
        raise WorkloadError(f"{field}: {entrypoint} is a {type(function).__name__}; name a function")
    return function  # type: ignore[no-any-return]


def find_modules_in(folders: Iterable[str]) -> None:
    """This process finds users' modules in these folders first, from now on."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def _imported(module_name: str, entrypoint: str, field: str) -> ModuleType:
    try:
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


def _near(name: str, module: ModuleType) -> str:
    own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    close = difflib.get_close_matches(name, own, n=3)
    defined = sorted(key for key in own if getattr(vars(module)[key], "__module__", None) == module.__name__)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"it defines {', '.join(defined)}" if defined else "it defines no function"
