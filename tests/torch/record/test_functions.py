"""Workloads that are functions of a notebook: how they are named, sent, kept and compared."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth_trainer.record import functions
from batchgrowth_trainer.record.functions import importable_name, parts_of
from batchgrowth_trainer.user_code import find_function
from batchgrowth_trainer.workloads import digits

CELL = """
import functools
import torch
from dataclasses import dataclass
from torch import nn

WIDTH = 8
TABLE = {"a": [1, 2.5], "b": {3, 4}}
WEIGHTS = torch.arange(4, dtype=torch.bfloat16)

@dataclass
class Sizes:
    hidden: int = WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(Sizes().hidden, 2)

    @property
    def width(self):
        return WIDTH

def again(count):
    return again(count - 1) if count else TABLE

SCALE = nn.Linear(2, 2)
nn.init.ones_(SCALE.weight), nn.init.zeros_(SCALE.bias)

def workload(rate=0.5):
    inner = functools.partial(again, 2)
    return Net(), inner, rate, WEIGHTS, [x for x in range(WIDTH)], SCALE
"""


@pytest.fixture(autouse=True)
def _none_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_RECEIVED", {})


def defined(cell: str, name: str = "workload", file: str = "<cell>") -> Callable[..., Any]:
    """The function that a cell of a notebook defines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, file, "exec"), names)
    function: Callable[..., Any] = names[name]
    return function


def test_the_entrypoint_says_what_the_function_computes() -> None:
    """Not where it was written: other lines, comments and files are the same function."""
    entrypoint, _ = functions.packed(defined(CELL))
    moved, _ = functions.packed(defined(f"# a comment\n\n{CELL}", file="/tmp/ipykernel_7/12.py"))

    assert entrypoint.endswith(":workload")
    assert functions.is_function(entrypoint)
    assert entrypoint == moved


def test_another_process_gives_it_the_same_name(tmp_path: Path) -> None:
    """Also if its strings have other hashes, on which the order of a set depends."""
    script = tmp_path / "script.py"
    script.write_text(f"{CELL}\nfrom batchgrowth_trainer.record.functions import packed\nprint(packed(workload)[0])\n")
    command = [sys.executable, str(script)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert printed == functions.packed(defined(CELL))[0]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("WIDTH = 8", "WIDTH = 9", "Sizes and WIDTH"),
        ("2.5", "2.25", "TABLE"),
        ("{3, 4}", "{3, 5}", "TABLE"),
        ("bfloat16", "float16", "WEIGHTS"),
        ("arange(4,", "arange(5,", "WEIGHTS"),
        ("count - 1", "count - 2", "again"),
        ("return WIDTH", "return WIDTH + 1", "Net"),
        ("zeros_(SCALE.bias)", "ones_(SCALE.bias)", "SCALE"),
        ("rate=0.5", "rate=0.25", "workload"),
        ("x for x", "-x for x", "workload"),
    ],
)
def test_what_changed_is_named(old: str, new: str, named: str) -> None:
    assert old in CELL
    (before, was), (now, data) = (functions.packed(defined(text)) for text in (CELL, CELL.replace(old, new)))

    assert before != now
    assert named.split(" and ") == functions.changes(was, data)


def test_what_a_function_catches_counts() -> None:
    """Its code is the same otherwise."""
    inside = "def f(a, b):\n    try:\n        a()\n        b()\n    except ValueError:\n        pass\n"
    outside = inside.replace("        b()\n", "").replace("        pass\n", "        pass\n    else:\n        b()\n")
    (before, was), (now, data) = (functions.packed(defined(text, "f")) for text in (inside, outside))

    assert before != now
    assert functions.changes(was, data) == ["f"]


@pytest.mark.parametrize(
    "value", [np.arange(3), (1, "a"), None, {"a": 1}, frozenset({"x", "y"}), print, dict, {"a": 1}.keys()]
)
def test_what_a_function_encloses_counts(value: object) -> None:
    def enclosing(held: object) -> Callable[[], object]:
        return lambda: held

    assert parts_of(enclosing(value)) == parts_of(enclosing(value))
    assert parts_of(enclosing(value)) != parts_of(enclosing("another"))


def test_it_is_found_once_it_was_received() -> None:
    entrypoint, data = functions.packed(defined("def workload():\n    return 42\n"))
    functions._RECEIVED.clear()
    with pytest.raises(WorkloadError, match=r"is a function that was given from Python, not a module; only its run's"):
        find_function(entrypoint)
    functions.receive(data)

    assert find_function(entrypoint)() == 42


def test_a_class_of_the_notebook_stays_the_same_class() -> None:
    """In the process that has it; isinstance holds for the model of a run."""
    cell = defined("class Net: pass\ndef workload():\n    return Net()\n")
    entrypoint, data = functions.packed(cell)
    functions._RECEIVED.clear()
    functions.receive(data)

    assert type(cell()) is type(find_function(entrypoint)())


def test_what_cannot_be_sent_is_an_error() -> None:
    cell = defined("def workload():\n    return lock\n")
    cell.__globals__["lock"] = threading.Lock()
    with pytest.raises(WorkloadError, match=r"workload: the function cannot be sent .*_thread\.lock.*; make what it"):
        functions.packed(cell)


def test_a_function_that_holds_its_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "LARGEST_BYTES", 1 << 20)
    cell = defined("def workload():\n    return data\n")
    cell.__globals__["data"] = torch.zeros(1 << 19)
    with pytest.raises(WorkloadError, match="takes 2 MiB with the values that it uses, and at most 1 MiB can be sent"):
        functions.packed(cell)


def test_a_function_needs_the_modules_that_it_imports() -> None:
    _, data = functions.packed(defined("def workload():\n    return 42\n"))
    functions._RECEIVED.clear()
    header, _ = data.split(b"\n", 1)
    with pytest.raises(WorkloadError, match="workload: the function needs the module 'gone', which is not here"):
        functions.receive(header + b"\ncgone\nfunction\n.")
    with pytest.raises(WorkloadError, match=r"cannot be read back \(UnpicklingError: .*\); train again"):
        functions.receive(header + b"\nnonsense")


def test_another_python_does_not_read_it() -> None:
    """The bytecode of another minor version could crash the interpreter."""
    _, data = functions.packed(defined("def workload():\n    return 42\n"))
    functions._RECEIVED.clear()
    header, body = data.split(b"\n", 1)
    other = json.dumps(json.loads(header) | {"python": "3.9"}).encode()
    with pytest.raises(
        WorkloadError, match=r"^workload: the function was sent or kept by Python 3\.9, and this is Pyth"
    ):
        functions.receive(other + b"\n" + body)


def test_a_run_has_its_function(tmp_path: Path) -> None:
    entrypoint, data = functions.packed(defined("def workload():\n    return 42\n"))
    assert functions.function_in(tmp_path, "package.module:function") == b""
    with pytest.raises(DataError, match=r"there is no workload\.pkl here, which has the workload workload"):
        functions.function_in(tmp_path, entrypoint)
    (tmp_path / "workload.pkl").write_bytes(data)
    assert data == functions.function_in(tmp_path, entrypoint)

    with pytest.raises(DataError, match="this is the function __notebook__"):
        functions.function_in(tmp_path, "__notebook__.f0123456789abcdef:workload")
    (tmp_path / "workload.pkl").write_bytes(data[5:])
    with pytest.raises(DataError, match=r"workload\.pkl: damaged"):
        functions.function_in(tmp_path, entrypoint)


def test_a_function_of_a_module_is_named_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless no other process could import that."""

    def inner() -> None: ...

    made = ModuleType("made")
    exec("def function(): ...", vars(made))
    monkeypatch.setitem(sys.modules, "made", made)

    assert importable_name(digits.mlp) == "batchgrowth_trainer.workloads.digits:mlp"
    assert [importable_name(one) for one in (inner, defined(CELL), made.function)] == [None] * 3


@pytest.mark.fault("G03")
def test_a_function_that_others_could_have_put_there_is_not_read(tmp_path: Path) -> None:
    """Its code would run as this user."""
    entrypoint, data = functions.packed(defined("def workload():\n    return 42\n"))
    path = tmp_path / "workload.pkl"
    path.write_bytes(data)
    path.chmod(0o666)
    with pytest.raises(DataError, match=r"workload\.pkl: another user owns this file or may write to it"):
        functions.function_in(tmp_path, entrypoint)
    path.chmod(0o644)
    assert data == functions.function_in(tmp_path, entrypoint)


@pytest.mark.fault("G03")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_function_of_another_user_is_not_read(tmp_path: Path) -> None:
    entrypoint, data = functions.packed(defined("def workload():\n    return 42\n"))
    path = tmp_path / "workload.pkl"
    path.write_bytes(data)
    os.chown(path, 65534, 65534)
    with pytest.raises(DataError, match=r"workload\.pkl: another user owns this file or may write to it"):
        functions.function_in(tmp_path, entrypoint)
    os.chown(tmp_path, 65534, 65534)  # the run is that user's, whose folder one has named
    assert data == functions.function_in(tmp_path, entrypoint)
