"""Runs that start in a script or in a notebook with a real kernel: the weights of the same workload as a module."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from batchgrowth.manifest.reading import read_manifest
from batchgrowth_trainer import commands
from batchgrowth_trainer.training import Options, train
from nbclient import NotebookClient

pytestmark = pytest.mark.timeout(600)
EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = """
import os, time, torch
from batchgrowth_trainer import Workload, correct
from torch import nn
from torch.utils.data import TensorDataset

WIDTH = 12

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.25), nn.Linear(WIDTH, 3))

    def forward(self, inputs):
        return self.layers(inputs)

def noise(inputs):
    if "SLOW" in os.environ and os.path.exists(os.environ["SLOW"]):
        time.sleep(1.5)
    return inputs + 0.01 * torch.randn_like(inputs)

def net():
    inputs = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, inputs[:, :3].argmax(dim=1))
    loss = nn.CrossEntropyLoss(reduction="none")
    return Workload(model=Net(), loss=loss, train=data, test=data, metrics={"accuracy": correct}, augment=noise)
"""
"""A workload, as a module or as the cell of a notebook."""
SPEC = """dict(
    epochs=5, batch={"initial": 8, "maximum": 64, "shard": 4, "growth": {"type": "Geometric",
    "geometric": {"factor": 2, "every_epochs": 1}}}, learning_rate={"initial": 0.05},
    exchange={"timeout_seconds": 20},
)"""
MANIFEST = """
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {name: module}
spec:
  workload: {entrypoint: "of_a_module:net", examples: 96}
  epochs: 5
  batch: {initial: 8, maximum: 64, shard: 4, growth: {type: Geometric, geometric: {factor: "2", everyEpochs: 1}}}
  learningRate: {initial: "0.05"}
  exchange: {type: SingleProcess}
"""


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's history; none before it has one."""
    try:
        with (folder / "history.csv").open() as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SHA-256 of the workload as a module, in one process."""
    folder = tmp_path_factory.mktemp("module")
    (folder / "of_a_module.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        summary = train(read_manifest(MANIFEST), Options(output_dir=folder / "run"))
    return str(summary["weightsSha256"])


@pytest.mark.parametrize(("workers", "function"), [(1, "net"), (3, "(lambda f: lambda: f())(net)")])
def test_a_script_without_a_guard_gives_the_weights_of_the_module(
    workers: int, function: str, weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With three workers the function encloses another, and a worker is killed, whose successor gets it too."""
    script = f"""{SOURCE}
from batchgrowth_trainer import train
import psutil, sys

class Killer:
    def handle(self, event):
        if type(event).__name__ == "HistoryRow" and event.workers == 3 and not hasattr(self, "done"):
            self.done = True
            servers = psutil.Process().children()
            max((w for s in servers for w in s.children()), key=lambda w: w.memory_info().rss).kill()

print("once")
run = train({function}, output_dir="run", workers={{"minimum": {workers}, "maximum": {workers}, "wait_seconds": 120}},
            sinks=[Killer()], **{SPEC})
assert isinstance(run.model, Net)
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())

    assert weights == summary["weightsSha256"]
    assert done.stdout.count("once") == 1
    assert workers == max(int(row["workers"]) for row in rows(tmp_path / "run"))
    assert (summary["recoveries"] > 0) is (workers == 3)
    commands.evaluate(tmp_path / "run")
    assert f"accuracy {summary['accuracy']:.6g}" in capsys.readouterr().out


class Kernel:
    """A notebook with a kernel of its own, whose folder is `folder`."""

    def __init__(self, folder: Path, cells: list[str]) -> None:
        self.notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        self.client = NotebookClient(
            self.notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(folder)}},
            allow_errors=True, coalesce_streams=True,
        )  # fmt: skip

    def run(self, cell: int) -> list[Any]:
        """The outputs of a cell, which is run now."""
        self.client.execute_cell(self.notebook.cells[cell], cell)
        return list(self.notebook.cells[cell].outputs)

    def interrupt(self) -> None:
        """Interrupt the cell that runs, as the notebook's button does."""
        os.killpg(os.getpgid(self.client.km.provisioner.pid), signal.SIGINT)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Callable[..., Kernel]]:
    """A function: a kernel for these cells."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("SLOW", str(tmp_path / "slow"))

        def started(*cells: str) -> Kernel:
            made = Kernel(tmp_path, list(cells))
            stack.enter_context(made.client.setup_kernel())
            return made

        yield started


def test_an_interrupted_cell_can_be_resumed(kernel: Callable[..., Kernel], weights: str, tmp_path: Path) -> None:
    """The cell ends with one paragraph and a checkpoint; resumed, the run has the weights of one without a stop."""
    (tmp_path / "slow").touch()
    call = f'run = train(net, output_dir="run", resume=True, workers={{"maximum": 2}}, **{SPEC})\n'
    cells = kernel(
        SOURCE, f"from batchgrowth_trainer import train\n{call}", "WIDTH = 13", call,
        SOURCE, f"{call}run.model(torch.ones(1, 6)).shape, type(run.model) is Net, run.summary['weightsSha256'][:16]",
    )  # fmt: skip
    cells.run(0)

    def interrupt() -> None:
        ends = time.monotonic() + 240
        while not rows(tmp_path / "run") and time.monotonic() < ends:
            time.sleep(0.05)
        cells.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    *_, stopped = cells.run(1)
    thread.join()
    assert stopped.output_type == "error", stopped
    assert stopped.ename == "Interrupted"
    [paragraph] = stopped.traceback
    assert paragraph.startswith("Interrupted: stopped after update ")
    assert "the checkpoint is in run, and resume=True continues from it" in paragraph

    (tmp_path / "slow").unlink()
    cells.run(2)
    [refused] = cells.run(3)
    assert "CheckpointError: run: the run there has another workload, since WIDTH changed" in refused.traceback[0]
    cells.run(4)
    *_, result = cells.run(5)
    assert f"(torch.Size([1, 3]), True, '{weights[:16]}')" == result.data["text/plain"]
    assert len(rows(tmp_path / "run")) == int(rows(tmp_path / "run")[-1]["update"])


def test_a_mistake_in_a_cell_is_named_by_its_line(kernel: Callable[..., Kernel]) -> None:
    cells = kernel(
        "from batchgrowth_trainer import train\ndef net():\n    return 1 / 0",
        f"train(net, **{SPEC})",
    )
    cells.run(0)
    [error] = cells.run(1)

    text = "WorkloadError: net raised ZeroDivisionError: division by zero (Cell In[1], line 3, in net); call it in Pyt"
    assert [text] == [line[: len(text)] for line in error.traceback]


def outputs_of(notebook: str, folder: Path) -> list[list[Any]]:
    """The outputs of each cell of code of an example, which is run in this folder."""
    read = nbformat.read(EXAMPLES / notebook, as_version=4)
    assert [cell for cell in read.cells if cell.get("outputs") or cell.get("execution_count")] == []
    client = NotebookClient(read, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()
    return [list(cell.outputs) for cell in read.cells if cell.cell_type == "code"]


def test_the_notebook_of_an_estimator_scales_its_cluster_and_has_the_weights_of_one_process(tmp_path: Path) -> None:
    """The number of workers follows the batch, from a cluster that has none."""
    before, _, parameters, table, plot, equal, _ = outputs_of("estimators.ipynb", tmp_path)

    assert before[0].data["text/plain"] == "0"
    assert "'batch_size': GeoDamp(initial=64, delay=2, factor=2)" in parameters[0].data["text/plain"]
    epochs = [line.split() for line in table[-1].data["text/plain"].splitlines()[1:]]
    assert [line[2] for line in epochs] == ["64"] * 2 + ["128"] * 2 + ["256"] * 2 + ["512"] * 4
    workers = [int(line[3]) for line in epochs]
    on_time = [1] * 4 + [2] * 2 + [3] * 4
    an_epoch_late = [1, *on_time[:-1]]  # as on a busy machine
    assert all(least <= there <= most for least, there, most in zip(an_epoch_late, workers, on_time, strict=True))
    assert float(epochs[-1][4]) > 0.95
    assert "image/png" in plot[-1].data
    assert equal[-1].data["text/plain"] == "True"


@pytest.mark.fault("N01")
def test_the_example_notebook_trains_plots_loads_predicts_and_sweeps(tmp_path: Path) -> None:
    """In a real kernel, with one display for the whole run."""
    _, training, evaluations, plot, prediction, sweep = outputs_of("digits.ipynb", tmp_path)

    assert [output.output_type for output in training] == ["display_data", "execute_result"]
    assert "epoch 8.0/8  update 172/172  stage 4/4" in training[0].data["text/plain"]
    summary = json.loads((tmp_path / "runs" / "digits-notebook" / "summary.json").read_text())
    assert summary["weightsSha256"] in training[1].data["text/html"]
    assert "accuracy" in evaluations[0].data["text/html"]
    assert "image/png" in plot[0].data
    [right] = [output.text for output in prediction if output.get("name") == "stdout"]
    assert f"{round(summary['accuracy'] * 360)} of 360 digits are right" in right
    for folder in ("runs/digits-sweep", "runs/digits-sweep-2", "runs/digits-sweep-3"):
        assert f"<td>{folder}</td>" in sweep[0].data["text/html"]
        assert (tmp_path / folder / "summary.json").is_file()
    assert summary["accuracy"] > 0.85
