"""The SBOMs of the images."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import HarnessError
from cluster.images import TARGETS
from cluster.supply.sbom import sbom

ROOT = Path(__file__).parents[3]


@cache
def made(target: str) -> str:
    """The SBOM of an image of this project; one that is not valid CycloneDX raises."""
    return sbom(ROOT, target)


def names(target: str) -> set[str]:
    """The distributions in an image."""
    return {each["name"] for each in json.loads(made(target))["components"]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the files that determine an SBOM."""
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_each_image_has_what_it_needs() -> None:
    """The other's heavy libraries, and what only tests and checks need, are in neither."""
    assert {"kopf", "kubernetes", "aiohttp", "pydantic-core"} <= names("operator")
    assert {"torch", "distributed", "safetensors", "pydantic-core"} <= names("trainer")
    assert not names("operator") & {"torch", "numpy", "matplotlib", "pytest", "ruff", "uv"}
    assert not names("trainer") & {"kopf", "kubernetes", "pytest", "ruff", "uv"}


@pytest.mark.parametrize("target", TARGETS)
def test_every_part_has_a_version_a_licence_and_its_needs(target: str) -> None:
    content: dict[str, Any] = json.loads(made(target))
    parts = content["components"]
    root = content["metadata"]["component"]
    needs = {each["ref"]: each.get("dependsOn", []) for each in content["dependencies"]}
    reached, waiting = set[str](), [root["bom-ref"]]
    while waiting:
        reached.add(at := waiting.pop())
        waiting += [ref for ref in needs[at] if ref not in reached]

    assert f"batchgrowth-{target}" == root["name"]
    assert all(each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}" for each in parts)
    assert [] == [each["name"] for each in parts if not each.get("licenses")]
    assert {root["bom-ref"], *(each["bom-ref"] for each in parts)} == reached


def test_the_same_lock_gives_the_same_bytes(project: Path) -> None:
    """Without a time, and with a serial number that follows from the content."""
    texts = [made(target) for target in TARGETS]

    assert made("operator") == sbom(project, "operator")
    assert all("timestamp" not in text for text in texts)
    assert len(TARGETS) == len({json.loads(text)["serialNumber"] for text in texts})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kopf==", "kopf==0+", r"kopf: installed is \S+, locked is 0\+\S+; run `make install`"),
        ("kopf==", "other==", "kopf: needed, and not in requirements.lock; run `make lock`"),
    ],
)
def test_what_is_installed_has_to_be_what_is_locked(project: Path, old: str, new: str, words: str) -> None:
    """The metadata of another version may name other needs."""
    lock = project / "requirements.lock"
    lock.write_text(lock.read_text().replace(f"\n{old}", f"\n{new}"))

    with pytest.raises(HarnessError, match=words):
        sbom(project, "operator")
