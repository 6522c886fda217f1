"""What builds fetch is named by version and digest; docs/security.md lists it."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster import build
from cluster.recipe import ALL, MODULES
from cluster.supply import PIN

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
MAKEFILE = (ROOT / "Makefile").read_text()
LOCK = dict(PIN.findall((ROOT / "requirements.lock").read_text()))
CHECKED = re.compile(
    r"--require-hashes|--constraints \S*requirements\.lock|--build-constraints \S*requirements\.lock"
    r"|--no-build-isolation"  # then what is installed builds
)
INSTALL = re.compile(r"pip install\b.*?(?=&&|\n|$)")


def test_pip_and_uv_check_digests() -> None:
    """Each command that installs reads them from the lock, uv's own installation and the build's requirements too."""
    commands = INSTALL.findall(DOCKERFILE) + INSTALL.findall(MAKEFILE)

    assert len(commands) >= 9
    assert [command for command in commands if not CHECKED.search(command)] == []
    assert LOCK.keys() > {"uv", "hatchling", "editables"}


def test_uv_s_entry_is_cut_out_of_the_lock() -> None:
    """By the command of the Dockerfile and of the Makefile."""
    commands = set(re.findall(r"sed -n '(.*?)'", DOCKERFILE + MAKEFILE.replace("$$", "$")))
    [script] = commands
    cut = subprocess.run(
        ["sed", "-n", script, ROOT / "requirements.lock"], capture_output=True, text=True, check=True
    ).stdout

    assert dict(PIN.findall(cut)) == {"uv": LOCK["uv"]}


@pytest.mark.parametrize(
    ("base", "good"),
    [
        (f"python:3.13-slim-bookworm@sha256:{64 * '0'}", True),
        (f"registry.example/python@sha256:{64 * 'a'}", True),
        ("localhost/batchgrowth-base:0123", True),
        (re.findall(r"^ARG BASE=(\S+)", DOCKERFILE, re.MULTILINE)[0], True),
        ("python:3.13-slim-bookworm", False),
        ("python@sha256:12", False),
        ("example.com/localhost/python:3.13", False),
    ],
)
def test_a_base_image_without_a_digest_is_refused(base: str, good: bool) -> None:
    """By the first step of the build, which says what would do."""
    first = DOCKERFILE.split("FROM ${BASE} AS python\nARG BASE\nRUN ")[1].split("\n")[0]
    done = subprocess.run(["sh", "-c", first], env={"BASE": base}, capture_output=True, text=True, check=False)

    assert good is (done.returncode == 0)
    assert good is ("has no digest; build with --build-arg BASE=" not in done.stderr)


@pytest.mark.parametrize("module", sorted({group.module for group in ALL}))
def test_go_modules_are_named_by_version_and_digest(module: str) -> None:
    """go.sum has the digest of each module in go.mod, and Go may change neither."""
    folder = MODULES / module
    text = (folder / "go.mod").read_text()
    replaced = dict(re.findall(r"(\S+)(?: v\S+)? => (\S+ v\S+)", text))
    required = dict(re.findall(r"^(?:require )?\s*((\S+\.\S+/\S+) v\S+)(?! =>)", text, re.MULTILINE))
    fetched = {replaced.get(name, both) for both, name in required.items()}
    sums = (folder / "go.sum").read_text() if required else ""

    assert required or module == "pause"
    lines = {line.rpartition(" h1:")[0].removesuffix("/go.mod") for line in sums.splitlines() if " h1:" in line}
    assert fetched - lines == set()
    assert {"GOFLAGS": "", "GOWORK": "off"}.items() <= build._PLAIN.items()
    assert '"-mod=readonly"' in Path(build.__file__).read_text()


def test_the_dask_operator_s_chart_comes_out_of_the_lock() -> None:
    """In the version of the package, and from no repository of charts."""
    [dependency] = yaml.safe_load((ROOT / "charts/batchgrowth/Chart.yaml").read_text())["dependencies"]

    assert (dependency["version"], dependency["repository"]) == (LOCK["dask-kubernetes"], "")
