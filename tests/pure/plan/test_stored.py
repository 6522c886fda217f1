"""Jobs that another version stored: its unknown fields, and what is handed on to a trainer."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import SpecError
from batchgrowth.manifest.reading import VERSION_ANNOTATION, load_manifest, load_stored, read_stored
from batchgrowth.spec import mathematics

ROOT = Path(__file__).parents[3]
GOOD = sorted([*(ROOT / "tests" / "corpus" / "good").iterdir(), *ROOT.glob("examples/**/*.yaml")])


def digits() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    return tree


@pytest.mark.fault("A31", "B15")
@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_the_short_spec_is_the_same_job(path: Path) -> None:
    """Read again it is the same spec, and so the same mathematics, with every default filled in or without any."""
    job = load_manifest(path)
    full = read_stored(job.model_dump_json(by_alias=True))
    head = {"apiVersion": job.api_version, "kind": job.kind, "metadata": {"name": job.metadata.name}}
    again = read_stored(json.dumps({**head, "spec": full.short}, ensure_ascii=False))

    assert () == full.unknown == again.unknown
    assert job.spec == full.job.spec == again.job.spec
    assert mathematics(job.spec) == mathematics(again.job.spec)
    assert full.short == again.short


def test_defaults_are_left_out() -> None:
    job = digits()
    job["spec"] |= {"suspend": False, "restarts": {"limit": 3}, "evaluation": {"everyEpochs": 1}}
    assert read_stored(json.dumps(digits())).short == read_stored(json.dumps(job)).short
    assert "restarts" not in read_stored(json.dumps(job)).short


@pytest.mark.fault("B15")
def test_unknown_fields_are_named_and_kept_for_others() -> None:
    job = digits()
    job["metadata"]["sinceVersion"] = "0.9"
    job["spec"]["pruning"] = "Magnitude"
    job["spec"]["workers"]["spot"] = {"share": "0.5"}
    job["spec"]["checkpoint"] = {"compress": True}
    stored = read_stored(json.dumps(job))

    unknown = ("metadata.sinceVersion", "spec.workers.spot", "spec.checkpoint.compress", "spec.pruning")
    assert sorted(unknown) == sorted(stored.unknown)
    assert (stored.short["pruning"], stored.short["checkpoint"]) == ("Magnitude", {"compress": True})
    assert stored.short["workers"]["spot"] == {"share": "0.5"}
    assert load_manifest(ROOT / "examples" / "digits.yaml").spec == stored.job.spec


def test_unknown_fields_of_a_list_are_left_out() -> None:
    """A list is the setting of one version, so what is handed on has only what this version read."""
    job = digits()
    job["spec"]["batch"]["growth"] = {
        "type": "Milestones",
        "milestones": {"steps": [{"epoch": 2, "batchSize": 64, "gently": True}]},
    }
    stored = read_stored(json.dumps(job))
    assert stored.unknown == ("spec.batch.growth.milestones.steps[0].gently",)
    assert stored.short["batch"]["growth"]["milestones"]["steps"] == [{"epoch": 2, "batchSize": 64}]


def test_other_faults_are_still_faults() -> None:
    job = digits()
    job["spec"] |= {"pruning": "Magnitude", "epochs": 0}
    with pytest.raises(SpecError, match=r"^spec\.epochs: 0; [^\n]*$"):
        read_stored(json.dumps(job))
    with pytest.raises(SpecError, match="not a map of fields"):
        read_stored("[]")


@pytest.mark.fault("F03")
@pytest.mark.parametrize(
    ("path", "accepted"),
    [
        ("workers.spot", True),
        ("checkpoint.codec", True),
        ("evaluation.onTraining", False),
        ("exchange.pruning", False),
        ("pruning", False),
        ("batch.warm", False),
        ("learningRate.restart", False),
        ("workload.mirror", False),
    ],
)
def test_a_trainer_refuses_what_its_weights_may_depend_on(tmp_path: Path, path: str, accepted: bool) -> None:
    """An older image than the operator's trains the same job or none."""
    job, file = digits(), tmp_path / "job.json"
    job["metadata"]["annotations"] = {VERSION_ANNOTATION: "0.9.0"}
    *parents, name = path.split(".")
    node = job["spec"]
    for parent in parents:
        node = node.setdefault(parent, {})
    node[name] = "new"
    file.write_text(json.dumps(job))
    if accepted:
        assert load_manifest(ROOT / "examples" / "digits.yaml").spec == load_stored(file).spec
        return
    with pytest.raises(SpecError) as refused:
        load_stored(file)
    assert str(refused.value).startswith(f"spec.{path}: not known to this trainer, ")
    assert str(refused.value).endswith("set spec.image to one of the operator's version, 0.9.0")
