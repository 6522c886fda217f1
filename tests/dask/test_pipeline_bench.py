"""The prototype of a pipeline: its stages have the weights of one process, and the benchmark reports it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.workloads.vgg import vgg11
from batchgrowth_trainer.workloads.wide_resnet import wide_resnet
from torch import nn

from bench.pipeline import contests
from bench.stages import cut

ROOT = Path(__file__).parents[2]
SYSTEMS = {"one process", "AllReduce (ours)", "pipeline", "pipeline over gloo"}


def test_the_stages_have_the_weights_of_one_process(tmp_path: Path) -> None:
    """Of a net without batch norm and dropout, and of one with both; each epoch ends with a smaller batch."""
    words = [sys.executable, "-m", "bench.pipeline", "--quick", "--markdown", "--output", str(tmp_path / "found.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert 2 * len(SYSTEMS) == done.stdout.count("| yes |\n")
    compared = {one["model"]: one for one in json.loads((tmp_path / "found.json").read_text())["compared"]}
    for contest in contests(quick=True):
        entries = compared[contest.case.model]["entries"]
        [count] = contest.micro_batches
        alone = contest.job(count)
        spec = alone.spec.model_copy(update={"exchange": type(alone.spec.exchange)(type="SingleProcess")})
        summary = train(
            alone.model_copy(update={"spec": spec}), Options(output_dir=tmp_path / "runs" / contest.case.model)
        )
        assert {entry["system"] for entry in entries} == SYSTEMS
        assert all(entry["is_same"] for entry in entries)
        assert {summary["weightsSha256"]} == {digest for entry in entries for digest in entry["sha256"]}


@pytest.mark.parametrize(
    ("model", "at"), [(vgg11(), "15"), (wide_resnet(10, 1, 0.3), "2"), (wide_resnet(16, 1, 0), "2.1")]
)
def test_a_cut_keeps_every_module_and_its_name(model: nn.Module, at: str) -> None:
    halves = cut(model, at)

    assert list(model.state_dict()) == [name for half in halves for name in half.state_dict()]
    assert any(name == at for name, _ in halves[1].named_modules())
    assert not any(name == at for name, _ in halves[0].named_modules())


@pytest.mark.parametrize("at", ["31", "15.0", "conv"])
def test_a_cut_needs_the_name_of_a_module_in_a_sequence(at: str) -> None:
    with pytest.raises(ValueError, match=r"no module of an nn\.Sequential"):
        cut(vgg11(), at)
