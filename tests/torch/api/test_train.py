"""Runs that start in Python, and their results, in this process."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small
import torch
from batchgrowth.errors import CheckpointError, DataError, Interrupted, SpecError, WorkloadError
from batchgrowth.manifest.reading import load_manifest
from batchgrowth_trainer import Run, Workload, load, train
from batchgrowth_trainer.api import in_python
from batchgrowth_trainer.record import functions
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event, Note, Started
from batchgrowth_trainer.training import Options
from batchgrowth_trainer.training import train as train_job
from batchgrowth_trainer.workloads.starting import begin
from safetensors.torch import load_file

SPEC: dict[str, Any] = {
    "seed": 3,
    "epochs": 4,
    "batch": {
        "initial": 8, "maximum": 32, "shard": 4,
        "growth": {"type": "Geometric", "geometric": {"factor": 2, "every_epochs": 1}},
    },
    "learning_rate": {"initial": 0.05, "rule": "DecayPastMaximum"},
    "optimizer": {"type": "SGD", "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.0005}},
    "exchange": {"type": "SingleProcess"},
}  # fmt: skip
"""The small job of the tests."""


def enclosed(wide: int = 8) -> Callable[[], Workload]:
    """A function that no module has."""

    def workload() -> Workload:
        net = torch.nn.Sequential(torch.nn.Linear(6, wide), torch.nn.ReLU(), torch.nn.Linear(wide, 3))
        return small.of(net)

    return workload


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run of a function."""
    return train(enclosed(), output_dir=tmp_path / "run", progress=False, **SPEC)


def test_a_module_a_manifest_and_keywords_are_one_job(tmp_path: Path, small_job: Any) -> None:
    expected = train_job(small_job(), Options(output_dir=tmp_path / "expected"))["weightsSha256"]
    kept = {name: value for name, value in SPEC.items() if name != "epochs"}
    found = [
        train(small.net, output_dir=tmp_path / "function", progress=False, **SPEC),
        train("small:net", output_dir=tmp_path / "name", examples=90, progress=False, **SPEC),
        train(tmp_path / "expected" / "job.yaml", output_dir=tmp_path / "manifest", progress=False),
        train(small_job("epochs=30"), output_dir=tmp_path / "job", epochs=4, progress=False, **kept),
    ]

    assert [run.summary and run.summary["weightsSha256"] for run in found] == [expected] * 4
    assert [run.job.metadata.name for run in found] == ["net", "net", "small", "small"]


def test_a_run_has_its_history_and_its_model(run: Run) -> None:
    assert run.summary is not None
    assert list(range(1, run.summary["updates"] + 1)) == list(run.history.index)
    assert {"epoch", "batch_size", "learning_rate", "loss", "workers"} < set(run.history)
    assert list(run.history.batch_size.unique()) == [8, 16, 32]
    assert list(run.evaluations) == ["epoch", "seconds", "loss", "accuracy"]
    assert list(run.evaluations.epoch) == [1, 2, 3, 4]

    weights = load_file(run.folder / "model.safetensors")
    assert not run.model.training
    assert all(torch.equal(weights[name], tensor) for name, tensor in run.model.state_dict().items())
    assert run.model is run.model


@pytest.mark.fault("N15")
def test_a_choice_that_can_never_act_is_noted(tmp_path: Path) -> None:
    events: list[Event] = []
    constant = {"initial": 8, "maximum": 64, "shard": 4}
    train(
        enclosed(),
        output_dir=tmp_path,
        progress=False,
        sinks=[SimpleNamespace(handle=events.append)],
        **SPEC | {"batch": constant, "epochs": 1},
    )
    told = [event.text for event in events if isinstance(event, Note)]
    assert [text for text in told if text.startswith("note: spec.batch.maximum: 64 is not reached")], told


def test_a_model_has_the_average_that_the_run_exported(tmp_path: Path) -> None:
    averaging = SPEC["optimizer"] | {"averaging": {"decay": 0.9}}
    run = train(enclosed(), output_dir=tmp_path, progress=False, **SPEC | {"optimizer": averaging})
    weights = load_file(tmp_path / "model.safetensors")

    assert all(torch.equal(weights[name], tensor) for name, tensor in run.model.state_dict().items())


def test_a_run_that_ended_early_has_its_best_model(tmp_path: Path) -> None:
    watched = {"metric": "loss", "mode": "Minimize"}
    judged = {"keep_best": watched, "stop_early": {**watched, "patience": 2, "minimum_change": 9}}
    run = train(enclosed(), output_dir=tmp_path, progress=False, **SPEC, evaluation=judged)
    weights = load_file(tmp_path / "best.safetensors")

    assert list(run.evaluations.epoch) == [1, 2, 3]
    assert all(torch.equal(weights[name], tensor) for name, tensor in run.best_model.state_dict().items())
    assert "ended early after epoch 3, best loss " in repr(run)


def test_it_is_shown(run: Run) -> None:
    assert f"Run('{run.folder}'): updates {run.summary and run.summary['updates']}, seconds " in repr(run)
    assert "<tr><th>accuracy</th><td>0." in run._repr_html_()
    pictures, sizes = run.plot()._repr_mimebundle_()
    assert pictures["image/png"].startswith(b"\x89PNG")
    assert sizes == {"image/png": {"width": 960}}
    assert (run.folder / "plot.html").is_file()


def test_another_process_loads_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has never seen the function; the run's folder has it."""
    expected = run.model(torch.ones(1, 6))
    monkeypatch.setattr(functions, "_RECEIVED", {})
    again = load(str(run.folder))

    assert torch.equal(expected, again.model(torch.ones(1, 6)))
    assert run.summary == again.summary


def test_the_process_stays_as_it_was(tmp_path: Path) -> None:
    """Training, counting the examples and loading the model draw no random number of the user's."""
    torch.set_num_threads(2)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    train(enclosed(), output_dir=tmp_path, progress=False, **SPEC).model(torch.ones(1, 6))

    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected
    assert torch.get_num_threads() == 2


class Stopper:
    """A sink that sends this process SIGINT, as Ctrl-C does, at an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def handle(self, event: Event) -> None:
        if isinstance(event, HistoryRow) and event.update == self.update:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_goes_on(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=rf"stopped after update 5; the checkpoint is in {folder}.*, and resume=True"):
        train(enclosed(), output_dir=folder, progress=False, sinks=[Stopper(5)], **SPEC)
    stopped = load(folder)
    assert signal.getsignal(signal.SIGINT) is before
    assert (stopped.summary, len(stopped.history)) == (None, 5)
    newest = "not finished; its newest checkpoint is of update 5, epoch 0"
    assert f"Run('{folder}'): state {newest}" == repr(stopped)
    assert isinstance(stopped.model, torch.nn.Module)

    resumed = train(enclosed(), output_dir=folder, progress=False, resume=True, **SPEC)
    assert run.summary is not None
    assert resumed.summary is not None
    assert run.summary["weightsSha256"] == resumed.summary["weightsSha256"]


def test_another_function_is_not_resumed(run: Run, tmp_path: Path) -> None:
    """What changed is named, and a new run keeps the one before."""
    with pytest.raises(CheckpointError, match=r"run: the run there has another workload, since workload changed; undo"):
        train(enclosed(wide=9), output_dir=run.folder, progress=False, resume=True, **SPEC)
    train(enclosed(wide=9), output_dir=run.folder, progress=False, **SPEC)
    earlier = tmp_path / "run" / "earlier" / "1"

    assert run.folder == earlier
    assert load(earlier).job.spec.workload.entrypoint.split(".")[1][0] == "f"
    for kept in (run, load(earlier)):
        assert next(kept.model.parameters()).shape[0] == 8


def test_a_thread_can_train(tmp_path: Path) -> None:
    """Only the main thread receives signals; others train without them."""
    runs: list[Run] = []
    spec = SPEC | {"epochs": 1}
    thread = threading.Thread(
        target=lambda: runs.append(train(enclosed(), output_dir=tmp_path, progress=False, **spec))
    )
    thread.start()
    thread.join()

    assert [run.summary and run.summary["epochs"] for run in runs] == [1]


def test_runs_in_two_threads_draw_their_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in this process seeds its generators, so it may not draw from them while another one does."""

    class Watched(torch.nn.Dropout):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.training:
                small.before_dropout()
            return super().forward(inputs)

    def workload() -> Workload:
        return small.of(torch.nn.Sequential(torch.nn.Linear(6, 8), Watched(), torch.nn.Linear(8, 3)))

    def trained(name: str, *sinks: Any) -> Any:
        return train(workload, output_dir=tmp_path / name, sinks=sinks, progress=False, **SPEC).summary

    def stop_at_the_second(row: Event) -> None:
        if isinstance(row, HistoryRow) and row.update == 2:
            is_amid.set()
            may_end.wait(10)

    def start_at_the_second(row: Event) -> None:
        if isinstance(row, HistoryRow) and row.update == 2:
            monkeypatch.setattr(small, "before_dropout", start_once)

    is_amid, may_end = threading.Event(), threading.Event()
    summaries: list[Any] = []
    other = threading.Thread(
        target=lambda: summaries.append(trained("other", SimpleNamespace(handle=stop_at_the_second)))
    )

    def start_once() -> None:
        monkeypatch.setattr(small, "before_dropout", lambda: None)
        other.start()
        is_amid.wait(1)

    monkeypatch.setattr(small, "before_dropout", lambda: None, raising=False)
    alone = trained("alone")
    summaries.append(trained("this", SimpleNamespace(handle=start_at_the_second)))
    may_end.set()
    other.join()

    assert [one["weightsSha256"] for one in summaries] == [alone["weightsSha256"]] * 2


@pytest.mark.parametrize(
    ("workload", "changes", "kind", "text"),
    [
        (small.net(), {}, SpecError, r"^workload: a Workload; give a function that returns a batchgrowth_trainer\.Wor"),
        (enclosed(), {"batch": {"initial": 8}}, SpecError, r"^batch\.maximum: missing; give a whole number"),
        (enclosed(), {"epoch": 3}, SpecError, r"^epoch: no such field; did you mean epochs\? It is given "),
        (enclosed(), {"arguments": {"hidden": 8}}, SpecError, r'^arguments\.hidden: 8; put it in quotes, "8"$'),
        (enclosed(), {"arguments": {"depth": "8"}}, WorkloadError, r"^arguments\.depth: workload takes no such argum"),
        (enclosed(), {"examples": 5}, DataError, r"^examples: 5 was given but workload has 90; set examples: 90$"),
        (lambda: 3, {}, WorkloadError, r"^workload: workload returned a int; return batchgrowth_trainer\.workload\.W"),
        (lambda: 1 / 0, {}, WorkloadError, r"^workload raised ZeroDivisionError: division by zero \(.*test_train\.py:"),
        ("small:nett", {}, WorkloadError, r"^workload: small has no 'nett'; did you mean net\?$"),
        ("gone.yaml", {}, SpecError, r"^gone\.yaml: cannot be read \(no such file or directory\); give the path"),
    ],
)  # fmt: skip
def test_mistakes_are_named_in_pythons_words(
    workload: Any, changes: dict[str, Any], kind: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=text) as caught:
        train(workload, output_dir=tmp_path, progress=False, **SPEC | changes)

    assert "--" not in str(caught.value)


def test_a_path_keeps_its_dashes() -> None:
    told = "runs/a--b--resume has a run; --resume it, or give another --output-dir."
    assert in_python(told) == "runs/a--b--resume has a run; resume=True it, or give another output_dir."


def test_a_field_to_set_is_a_keyword() -> None:
    told = in_python("--set exchange.type=SingleProcess trains in this process")
    assert told == 'exchange={"type": "SingleProcess"} trains in this process'


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no job\.yaml here; name the output_dir of a run"):
        load(tmp_path)


def test_tables_need_pandas(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"tables need pandas: pip install 'batchgrowth\[notebook\]'"):
        _ = run.history


def test_sinks_and_the_display_receive_the_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Event] = []

    class Keeper:
        def handle(self, event: Event) -> None:
            seen.append(event)

    train(enclosed(), output_dir=tmp_path / "run", sinks=[Keeper()], **SPEC)
    train(enclosed(), output_dir=tmp_path / "run", resume=True, **SPEC)

    assert [event.name for event in seen if isinstance(event, Started)] == ["workload"]
    printed = capsys.readouterr().out
    assert "workload starts: 4 epochs" in printed
    assert "Omit resume=True, or give another output_dir, to train it again." in " ".join(printed.split())


@pytest.mark.fault("N13")
def test_what_is_no_sink_is_refused_by_name(tmp_path: Path) -> None:
    class Counter:
        pass

    refused = (
        r"sinks\[0\]: a Counter without the method handle; give an object with handle\(event\)\n"
        r"sinks\[1\]: the class Counter; give an object of it$"
    )
    with pytest.raises(SpecError, match=refused):
        train(enclosed(), output_dir=tmp_path, sinks=[Counter(), Counter], **SPEC)  # type: ignore[list-item]


@pytest.mark.long
@pytest.mark.fault("N13")
def test_the_template_of_init_trains_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, manifest = begin(tmp_path / "template-of-init")
    monkeypatch.syspath_prepend(str(code.parent))
    job = load_manifest(manifest, ["exchange.type=SingleProcess", "workers.maximum=1"])
    summary = train(job, output_dir=tmp_path / "run", progress=False).summary
    assert summary is not None
    assert summary["accuracy"] > 0.94


def test_importing_the_package_is_quick() -> None:
    """torch and Dask are loaded when something of it is used."""
    code = (
        "import sys, batchgrowth_trainer as b; print({'torch', 'dask', 'numpy'} & sys.modules.keys());"
        "print(sorted(b.__all__) == b.__all__ and {*b.__all__} < {*dir(b)});"
        "print(all(getattr(b, n) for n in b.__all__))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.splitlines() == ["set()", "True", "True"]
