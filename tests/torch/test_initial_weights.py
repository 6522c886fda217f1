"""Trainings that start from the weights of a file or of another run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.errors import CheckpointError, DataError, Interrupted
from batchgrowth.manifest.reading import load_manifest
from batchgrowth_trainer.building import begin_with, digest, read_weights
from batchgrowth_trainer.training import Options, train
from safetensors.torch import save_file
from torch import nn

pytestmark = pytest.mark.fault("N05")


def net(last: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, last))


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, torch.Tensor]:
    """Those of another net, which are in weights.safetensors, weights.pt, and a folder of a run."""
    found = {name: value.clone() for name, value in net().state_dict().items()}
    save_file(found, tmp_path / "weights.safetensors")
    torch.save(found, tmp_path / "weights.pt")
    torch.save({"state_dict": found, "epoch": 3}, tmp_path / "nested.pth")
    (tmp_path / "run").mkdir()
    shutil.copy(tmp_path / "weights.safetensors", tmp_path / "run" / "model.safetensors")
    return found


def spec(small_job: Any, path: Path, **more: str) -> Any:
    block = ", ".join([f"path: {path}", *(f"{name}: {value!r}" for name, value in more.items())])
    return small_job(f"initialWeights={{{block}}}").spec


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt", "nested.pth", "run"])
def test_a_model_begins_with_them(small_job: Any, tmp_path: Path, weights: Any, name: str) -> None:
    model = net()
    begin_with({"": model}, spec(small_job, tmp_path / name, sha256=digest(weights)))

    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_by_name_those_that_fit_are_taken(small_job: Any, tmp_path: Path, weights: Any) -> None:
    model = net(last=5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    begin_with({"": model}, spec(small_job, tmp_path / "run", match="ByName"))
    after = model.state_dict()

    assert all(torch.equal(weights[name], after[name]) for name in ("0.weight", "0.bias"))
    assert all(torch.equal(before[name], after[name]) for name in ("1.weight", "1.bias"))


@pytest.mark.parametrize("match", ["Strict", "ByName"])
@pytest.mark.parametrize("written", ["0.weight", "1.weight"])
def test_a_tensor_that_layers_share_needs_one_of_its_names(
    small_job: Any, tmp_path: Path, match: str, written: str
) -> None:
    """Files of language models have the embedding alone, or the head alone."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    save_file({written: torch.full((5, 3), 7.0)}, tmp_path / "tied.safetensors")
    begin_with({"": model}, spec(small_job, tmp_path / "tied.safetensors", match=match))

    assert torch.equal(model[0].weight, torch.full((5, 3), 7.0))


@pytest.mark.parametrize(
    ("name", "more", "last", "expected"),
    [
        ("run", {}, 5, r"does not fit the model: 1\.bias, 1\.weight are not the same in both; .* match: ByName"),
        ("run", {"sha256": "0" * 64}, 3, "have .*; give these weights their digest"),
        ("none", {}, 3, "none: there is no such file or folder"),
        ("empty", {}, 3, r"has no model\.safetensors, which a run writes at its end"),
        ("text.pt", {}, 3, r"text\.pt cannot be read"),
        ("list.pt", {}, 3, "has no state dict"),
        ("other.pt", {"match": "ByName"}, 3, "has no tensor of the name and the shape"),
    ],
)
def test_what_does_not_fit_is_refused(
    small_job: Any, tmp_path: Path, weights: Any, name: str, more: Any, last: int, expected: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.pt").write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"layers.0": torch.zeros(2)}, tmp_path / "other.pt")

    with pytest.raises(DataError, match=expected):
        begin_with({"": net(last)}, spec(small_job, tmp_path / name, **more))


def test_their_digest_belongs_to_the_mathematics(small_job: Any, tmp_path: Path) -> None:
    """The path does not: the same weights may lie elsewhere at a resume."""
    plain = train(small_job("epochs=1"), Options(output_dir=tmp_path / "first"))
    started = ("epochs=1", f"initialWeights.path={tmp_path / 'first'}")
    whole = train(small_job(*started), Options(output_dir=tmp_path / "whole"))
    left = iter(range(5))
    with pytest.raises(Interrupted):
        train(
            small_job(*started), Options(output_dir=tmp_path / "run"), stop_requested=lambda: next(left, None) is None
        )
    recorded = load_manifest(tmp_path / "run" / "job.yaml").spec.initial_weights
    assert recorded is not None
    assert recorded.sha256 == digest(read_weights(tmp_path / "first"))

    other = {name: value + 1 for name, value in read_weights(tmp_path / "first").items()}
    save_file(other, tmp_path / "other.safetensors")
    changed = small_job("epochs=1", f"initialWeights.path={tmp_path / 'other.safetensors'}")
    with pytest.raises(CheckpointError, match=r"belongs to another job .initialWeights\.sha256: "):
        train(changed, Options(output_dir=tmp_path / "run", resume=True))
    (tmp_path / "first").rename(tmp_path / "moved")
    moved = small_job("epochs=1", f"initialWeights.path={tmp_path / 'moved'}")
    again = train(moved, Options(output_dir=tmp_path / "run", resume=True))

    assert again["weightsSha256"] == whole["weightsSha256"] != plain["weightsSha256"]
