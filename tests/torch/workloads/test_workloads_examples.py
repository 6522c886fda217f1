"""The workloads of examples/ and of docs/workloads.md."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan
from batchgrowth_trainer.record.history import EVALUATION_HEADER, HISTORY_HEADER
from batchgrowth_trainer.replica.data import fetch
from batchgrowth_trainer.user_code import find_function, load_workload
from batchgrowth_trainer.workload import predict

ROOT = Path(__file__).parents[3]
SPIRAL = ROOT / "examples" / "spiral"
PAGE = (ROOT / "docs" / "workloads.md").read_text()
OWN_MANIFESTS = [
    ROOT / "examples" / name
    for name in (
        "spiral/job.yaml", "cifar10-wrn.yaml", "cifar10-vgg11.yaml", "characters/growth.yaml", "characters/job.yaml",
        "images/job.yaml", "memmap/job.yaml", "sequences/job.yaml",
    )
]  # fmt: skip


@pytest.mark.parametrize(("language", "file"), [("python", "spiral.py"), ("yaml", "job.yaml")])
def test_the_page_shows_the_example_as_it_is(language: str, file: str) -> None:
    shown = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)[0]
    assert (SPIRAL / file).read_text() == shown


def test_the_page_tells_the_defaults_of_what_ships() -> None:
    rows = re.findall(r"^\| `(\w+):(\w+)` \| (.*?) \|", PAGE, flags=re.MULTILINE)
    assert len(rows) == 5
    for module, name, arguments in rows:
        function = getattr(importlib.import_module(f"batchgrowth_trainer.workloads.{module}"), name)
        parameters = inspect.signature(function).parameters.values()
        assert {parameter.name: parameter.default for parameter in parameters} == dict(
            re.findall(r'`(\w+)="([^"]*)"`', arguments)
        )


def test_the_page_tells_the_columns() -> None:
    assert f"`{', '.join(HISTORY_HEADER)}`" in PAGE
    assert f"`{', '.join(EVALUATION_HEADER)}`" in PAGE


@pytest.mark.parametrize("path", OWN_MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_manifest_is_accepted_and_its_batch_and_workers_grow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(path.parent)
    spec = load_manifest(path).spec
    stages = make_plan(spec).stages
    assert stages[-1].batch_size == spec.batch.maximum
    assert (1, spec.workers.maximum) == (stages[0].workers, stages[-1].workers)
    assert set(spec.workload.arguments) <= set(inspect.signature(find_function(spec.workload.entrypoint)).parameters)


def test_the_spiral_is_learned_by_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain loop over the plan's batches tells the spirals apart."""
    monkeypatch.syspath_prepend(SPIRAL)
    spec = load_manifest(SPIRAL / "job.yaml").spec
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        workload = load_workload(
            spec.workload.entrypoint, spec.workload.arguments, seed=spec.seed, examples=spec.workload.examples
        )
        optimizer = torch.optim.Adam(workload.model.parameters(), lr=0.005)
        for stage in make_plan(spec).stages:
            for _ in range(int(stage.epoch_to - stage.epoch_from)):
                for indices in torch.randperm(spec.workload.examples).split(stage.batch_size):
                    inputs, target = fetch(workload.train, indices)
                    optimizer.zero_grad()
                    workload.loss(predict(workload.model, inputs), target).mean().backward()
                    optimizer.step()
    torch.set_num_threads(threads)
    assert workload.test is not None
    inputs, target = fetch(workload.test, torch.arange(500))
    assert workload.metrics["accuracy"](predict(workload.model, inputs), target).mean() > 0.97
