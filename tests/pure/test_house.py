"""The repository keeps its shape."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("operator", "trainer", "plan", "tests")
PACKAGES = ("operator/batchgrowth_operator", "plan/batchgrowth", "trainer/batchgrowth_trainer")


def tracked() -> list[Path]:
    """Every file that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_package_shadows_a_standard_module() -> None:
    """`operator/__init__.py` would take the place of the standard library's operator in every process started here."""
    stray = [*(ROOT / room / "__init__.py" for room in ROOMS), *(ROOT / "tests").glob("*/__init__.py")]

    assert [path for path in stray if path.exists()] == []


def test_python_starts_at_the_root() -> None:
    """A process that is started at the root finds the standard library's modules."""
    code = "import operator, collections; print(operator.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert str(ROOT) not in where.replace(sys.prefix, "")


def test_the_lock_covers_what_the_project_needs() -> None:
    """Each named requirement is pinned, with digests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    named = [*project["project"]["dependencies"], *(r for extra in extras for r in extra)]
    named += project["dependency-groups"]["dev"]
    lock = (ROOT / "requirements.lock").read_text()

    for requirement in named:
        name = re.split(r"[><=~!\[; ]", requirement)[0].lower().replace("_", "-")
        assert re.search(rf"^{re.escape(name)}==\S+ .*\\$", lock, re.MULTILINE), name
    assert "--hash=sha256:" in lock


@pytest.mark.parametrize("word", ["/wor" + "k/", "/roo" + "t/", "pythonhosted" + ".org", "pypi" + ".org"])
def test_no_file_names_a_machine_or_a_registry(word: str) -> None:
    """What is committed runs anywhere."""
    binary = {".png", ".bin"}
    guilty = [path for path in tracked() if path.suffix not in binary and word in path.read_text(errors="replace")]

    assert guilty == []


def test_every_folder_of_the_packages_says_what_belongs_there() -> None:
    """A docstring in its `__init__.py`."""
    code = [path for path in tracked() if path.suffix == ".py"]
    folders = {
        folder
        for path in code
        for folder in path.parents
        if any(ROOT / p in (folder, *folder.parents) for p in PACKAGES)
    }
    silent = [folder for folder in folders if not _docstring(folder / "__init__.py")]

    assert folders
    assert silent == []


def test_smoke_marks_only_tests_of_the_tiers_that_make_test_runs_in_part() -> None:
    """Elsewhere `make test-all` would leave the test out, and `make test` would not run it, or run it anyway."""
    [folders] = re.findall(r"^PARTLY := ([^#\n]*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    partly = [ROOT / folder for folder in (*folders.split(), "tests/torch")]
    marked = [p for p in tracked() if p.suffix == ".py" and "pytest.mark" + ".smoke" in p.read_text()]

    assert marked
    assert [path for path in marked if not any(folder in path.parents for folder in partly)] == []


def _docstring(path: Path) -> str | None:
    return ast.get_docstring(ast.parse(path.read_text())) if path.exists() else None
