"""Entrypoints are loaded and checked; each fault of users' code is one paragraph that says what to do."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth_trainer.user_code import load_workload
from batchgrowth_trainer.user_errors import ReadFault, is_users
from batchgrowth_trainer.workload import Workload

Load = Callable[..., Workload]

GOOD = """
import random

import numpy
import torch
from batchgrowth_trainer.workload import Workload
from torch import nn
from torch.utils.data import TensorDataset


def loss(output, target):
    return ((output - target) ** 2).sum(1)


def made(**changes):
    plain = dict(model=nn.Linear(3, 1), loss=loss, train=TensorDataset(torch.rand(8, 3), torch.rand(8, 1)))
    return Workload(**{**plain, **changes})


def workload(width="4", *, depth="1"):
    return made()
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Loads `mine:workload` from GOOD with some source appended, in a fresh folder under a module name of its own."""
    name = re.sub(r"\W", "_", f"mine_{tmp_path.name}")
    monkeypatch.syspath_prepend(tmp_path)

    def loaded(source: str = "", entry: str = "workload", examples: int | None = None, **arguments: str) -> Workload:
        (tmp_path / f"{name}.py").write_text(GOOD + source)
        return load_workload(f"{name}:{entry}", arguments, seed=7, examples=examples)

    with torch.random.fork_rng():
        yield loaded


def test_a_good_workload_is_returned(load: Load) -> None:
    workload = load(width="8", depth="2", examples=8)
    assert len(workload.train) == 8
    assert workload.test is None


def test_the_seed_fixes_every_generator(load: Load) -> None:
    source = """
def workload():
    return made(model=nn.Linear(3, 1), metrics={f"m{random.random()}"[:9]: loss, f"n{numpy.random.rand()}"[:9]: loss})
"""
    first, second = load(source), load(source)
    assert list(first.metrics) == list(second.metrics)
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_another_seed_builds_another_model() -> None:
    entry = "batchgrowth_trainer.workloads.digits:mlp"
    one, two = (load_workload(entry, {}, seed=seed, examples=1437).model for seed in (1, 2))
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        ("no_such_package.mine:workload", r"no module named 'no_such_package'.*beside the manifest"),
        ("batchgrowth_trainer.nothing:workload", r"no module named 'batchgrowth_trainer\.nothing'"),
        ("batchgrowth_trainer.workloads.digits:worklaod", "has no 'worklaod'; did you mean workload?"),
        ("batchgrowth_trainer.workloads.digits:zzz", r"it defines .*mlp.*workload"),
        ("batchgrowth_trainer.workloads.digits:CLASSES", "is a int; name a function"),
        ("batchgrowth_trainer.workloads.digits", "write package.module:function"),
        (":workload", "write package.module:function"),
    ],
)
def test_an_entrypoint_that_names_no_function(entrypoint: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        load_workload(entrypoint, {}, seed=0, examples=None)


BAD_CODE: Mapping[str, tuple[str, str]] = {
    "a syntax error": ("def workload(:\n", r"importing mine_\w+ raised SyntaxError"),
    "an import of what is not there": ("import no_such_thing\n", r"importing .* No module named 'no_such_thing'.*:\d+"),
    "an error while importing": ("1 / 0\n", r"importing .* raised ZeroDivisionError: division by zero .*mine_\w+\.py:"),
    "an error in the call": (
        "def workload():\n    return made(**{}['a'])\n",
        r"mine_\w+:workload raised KeyError: 'a' \(.*mine_\w+\.py:\d+, in workload\)",
    ),
    "an exit while importing": ("import sys\nsys.exit('no GPU')\n", r"importing .* raised SystemExit: no GPU .*:\d+"),
    "an exit in the call": ("import sys\ndef workload():\n    sys.exit(0)\n", r"raised SystemExit: 0 .*in workload\)"),
    "an error of several lines": ("def workload():\n    raise ValueError('one\\ntwo')\n", "raised ValueError: one two"),
    "no return": ("def workload():\n    made()\n", "returned a NoneType; return batchgrowth_trainer"),
    "a model that is none": ("def workload():\n    return made(model=3)\n", "model is a int; give a torch.nn.Module"),
    "nothing to train": (
        "def workload():\n    return made(model=nn.ReLU())\n",
        "no parameter of the model needs a gradient",
    ),
    "a frozen model": (
        "def workload():\n    return made(model=nn.Linear(3, 1).requires_grad_(False))\n",
        "no parameter of the model needs a gradient",
    ),
    "double precision": (
        "def workload():\n    return made(model=nn.Linear(3, 1).double())\n",
        r"model\.weight is torch\.float64; parameters must be torch\.float32",
    ),
    "a loss that is no function": ("def workload():\n    return made(loss=3)\n", "loss is a int"),
    "a metric that is no function": ("def workload():\n    return made(metrics={'a': 3})\n", r"metrics\.a is a int"),
    "a metric of the whole set that is no function": (
        "def workload():\n    return made(whole_set_metrics={'auc': 3})\n",
        r"whole_set_metrics\.auc is a int",
    ),
    "a metric of two kinds": (
        "def workload():\n    return made(metrics={'auc': loss}, whole_set_metrics={'auc': loss})\n",
        "auc is in metrics and in whole_set_metrics; rename one",
    ),
    "metrics without names": (
        "def workload():\n    return made(metrics=[loss])\n",
        "metrics is a list; give functions by name",
    ),
    "metrics that are None": (
        "def workload():\n    return made(metrics=None)\n",
        "metrics is a NoneType; .* leave it out",
    ),
    "metrics of the whole set without names": (
        "def workload():\n    return made(whole_set_metrics=loss)\n",
        "whole_set_metrics is a function; give functions by name",
    ),
    "a metric that is named by a number": (
        "def workload():\n    return made(metrics={1: loss})\n",
        "named 1; write letters",
    ),
    "a test set that is named by a number": (
        "def workload():\n    return made(test={0: [(1, 2)]})\n",
        "a test set is named 0; write letters",
    ),
    "a length that is no number": (
        "class Rows(list):\n    def __len__(self): return 'many'\ndef workload():\n    return made(train=Rows())\n",
        "checking what it returned raised TypeError: 'str' object cannot be interpreted as an integer",
    ),
    "a metric of a taken name": ("def workload():\n    return made(metrics={'loss': loss})\n", "named 'loss'"),
    "a metric that breaks a CSV": ("def workload():\n    return made(metrics={'a,b': loss})\n", "named 'a,b'"),
    "an augmentation that is no function": ("def workload():\n    return made(augment=3)\n", "augment is a int"),
    "a buffer that cannot be averaged": (
        "def workload():\n    model = nn.Linear(3, 1)\n"
        "    model.register_buffer('scale', torch.ones(2, dtype=torch.float8_e5m2))\n    return made(model=model)\n",
        r"the buffer model\.scale is torch\.float8_e5m2, whose changes cannot be averaged",
    ),
    "a complex buffer": (
        "def workload():\n    model = nn.Linear(3, 1)\n"
        "    model.register_buffer('phase', torch.ones(2, dtype=torch.complex64))\n    return made(model=model)\n",
        r"the buffer model\.phase is torch\.complex64",
    ),
    "a sparse buffer": (
        "def workload():\n    model = nn.Linear(3, 1)\n"
        "    model.register_buffer('graph', torch.eye(3).to_sparse())\n    return made(model=model)\n",
        r"model\.graph is torch\.sparse_coo, and no file of weights holds such a tensor; register to_dense\(\)",
    ),
    "a frozen sparse parameter": (
        "def workload():\n    model = nn.Linear(3, 1)\n"
        "    model.graph = nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)\n"
        "    return made(model=model)\n",
        r"model\.graph is torch\.sparse_coo, and no file",
    ),
    "a frozen parameter that cannot be saved": (
        "def workload():\n    model = nn.Linear(3, 1)\n"
        "    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex128), requires_grad=False)\n"
        "    return made(model=model)\n",
        r"model\.phase is torch\.complex128, which safetensors.* torch\.complex64",
    ),
    "a frozen parameter of four bits": (
        "def workload():\n    model = nn.Linear(3, 1)\n"
        "    model.codes = nn.Parameter(torch.empty(2, dtype=torch.uint4), requires_grad=False)\n"
        "    return made(model=model)\n",
        r"model\.codes is torch\.uint4, which safetensors",
    ),
    "a model without numbers": (
        "def workload():\n    return made(model=nn.Linear(3, 1, device='meta'))\n",
        r"model\.weight is on the device meta, and so has no numbers; make the model outside of",
    ),
    "state that is no tensor": (
        "class Net(nn.Linear):\n    def get_extra_state(self): return None\n"
        "def workload():\n    return made(model=Net(3, 1))\n",
        r"model\.state_dict\(\) has a NoneType under _extra_state.* safetensors.* by register_buffer",
    ),
    "a collate that is no function": ("def workload():\n    return made(collate=3)\n", "collate is a int"),
    "a step that is no function": ("def workload():\n    return made(step=3)\n", "step is a int; give .model, inputs"),
    "no test set by name": ("def workload():\n    return made(test={})\n", "test is an empty mapping; give None"),
    "an empty test set among others": (
        "def workload():\n    return made(test={'a': [(1, 2)], 'b': []})\n",
        r"test\.b holds no example",
    ),
    "a test set that breaks a CSV": (
        "def workload():\n    return made(test={'a,b': [(1, 2)]})\n",
        "a test set is named 'a,b'; write letters",
    ),
    "a metric with the name of a test set's": (
        "def workload():\n    return made(test={'a': [(1, 2)]}, metrics={'a.loss': loss})\n",
        r"the metric 'a\.loss' has the name of a value of the test set 'a'; rename it",
    ),
    "a lazy layer": (
        "def workload():\n    return made(model=nn.LazyLinear(1))\n",
        r"model\.weight has no shape yet, since its module is lazy; call the model once with an example",
    ),
    "lazy statistics": (
        "def workload():\n    return made(model=nn.Sequential(nn.Linear(3, 1), nn.LazyBatchNorm1d(affine=False)))\n",
        r"model\.1\.running_mean has no shape yet",
    ),
    "a stream": (
        "class Stream(torch.utils.data.IterableDataset):\n    def __iter__(self): return iter([])\n"
        "    def __len__(self): return 3\n"
        "def workload():\n    return made(train=Stream())\n",
        "train is a Stream; give a map-style data set",
    ),
    "a generator": ("def workload():\n    return made(train=iter([1]))\n", "train is a list_iterator"),
    "no examples": ("def workload():\n    return made(train=[])\n", "train holds no example"),
    "an empty test set": ("def workload():\n    return made(test=[])\n", "test holds no example"),
}


@pytest.mark.fault("A18", "A20", "A32", "D18")
@pytest.mark.parametrize("fault", BAD_CODE)
def test_a_fault_in_the_users_code_is_one_paragraph(load: Load, fault: str) -> None:
    source, said = BAD_CODE[fault]
    with pytest.raises(WorkloadError, match=said) as caught:
        load(source)
    assert "\n" not in str(caught.value)


def test_an_argument_that_is_not_taken(load: Load) -> None:
    with pytest.raises(WorkloadError, match=r"workload\.arguments\.hieght: .* it takes width, depth"):
        load(hieght="3")


def test_an_argument_that_is_needed(load: Load) -> None:
    with pytest.raises(WorkloadError, match=r"workload\.arguments\.data: .* needs it and none was given"):
        load("def workload(data):\n    return made()\n")


def test_a_function_may_take_anything(load: Load) -> None:
    assert len(load("def workload(**anything):\n    return made()\n", a="1", b="2").train) == 8


def test_data_of_another_length_is_a_data_error(load: Load) -> None:
    with pytest.raises(DataError, match=r"workload\.examples: 9 was given .* has 8; set workload\.examples: 8"):
        load(examples=9)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ("OSError(5, 'Input/output error')", ReadFault, r"raised OSError: .*Input/output error .*, in __len__\)"),
        ("FileNotFoundError('rows.csv')", DataError, r"a file is missing: FileNotFoundError: rows\.csv"),
    ],
)
def test_a_length_that_cannot_be_read_is_blamed_like_reading(
    load: Load, error: str, kind: type[DataError], said: str
) -> None:
    source = (
        f"class Rows(list):\n    def __len__(self): raise {error}\ndef workload():\n    return made(train=Rows())\n"
    )
    with pytest.raises(kind, match=rf"checking what it returned.*{said}"):
        load(source)


@pytest.mark.fault("A20")
def test_a_missing_file_is_a_data_error(load: Load, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a file is missing.*train\.csv"):
        load(f"def workload():\n    return made(train=open({str(tmp_path / 'train.csv')!r}))\n")


def test_our_own_errors_pass_unchanged(load: Load) -> None:
    source = (
        "from batchgrowth.errors import DataError\ndef workload():\n    raise DataError('x.bin: missing; fetch it')\n"
    )
    with pytest.raises(DataError, match=r"^x\.bin: missing; fetch it$"):
        load(source)


@pytest.mark.fault("T09")
@pytest.mark.parametrize("name", ["types", "json.decoder"])
def test_a_file_with_the_name_of_a_module_of_pythons_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(GOOD)
    with pytest.raises(WorkloadError) as raised:
        load_workload(f"{name}:workload", {}, seed=0, examples=8)
    assert str(raised.value) == (
        f"workload.entrypoint: {name} has no 'workload'; {file} is not imported by this name, since {name} is a module "
        "of Python's own; rename the file"
    )


@pytest.mark.parametrize("folder", ["lib/python3.11/site-packages", "lib/python3/dist-packages"])
def test_what_is_installed_is_not_the_users(tmp_path: Path, folder: str) -> None:
    assert is_users(str(tmp_path / "digits.py"))
    assert not is_users(str(tmp_path / folder / "digits.py"))
