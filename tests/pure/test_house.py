"""The repository keeps its shape."""

import ast
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from repository import tracked

ROOT = Path(__file__).parents[2]
ONLY_IF_THERE = {"IPython", "mlflow", "pandas", "wandb"}
"""What the trainer uses where a user has installed it; each import is told or done without."""
ROOMS = ("operator", "trainer", "plan", "tests")
PACKAGES = ("operator/batchgrowth_operator", "plan/batchgrowth", "trainer/batchgrowth_trainer")


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
        name = normal(re.split(r"[><=~!\[; ]", requirement)[0])
        assert re.search(rf"^{re.escape(name)}==\S+ .*\\$", lock, re.MULTILINE), name
    assert "--hash=sha256:" in lock


def normal(name: str) -> str:
    """A distribution's name as packages compare it."""
    return name.lower().replace("_", "-")


def installed_with(requirements: list[str]) -> set[str]:
    """The distributions that these requirements install, with all that they require in turn."""
    found: set[str] = set()
    ahead = list(requirements)
    while ahead:
        requirement = ahead.pop()
        name = normal(re.split(r"[><=~!\[; (]", requirement)[0])
        if name in found or "extra ==" in requirement:
            continue
        with suppress(PackageNotFoundError):  # one for another system
            ahead += requires(name) or []
            found.add(name)
    return found


@pytest.mark.parametrize(("package", "extra"), list(zip(PACKAGES, ("operator", "operator", "trainer"), strict=True)))
def test_an_image_has_what_its_code_imports(package: str, extra: str) -> None:
    """All extras are installed here, so no other test would miss a requirement of one of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    there = installed_with([*project["dependencies"], *project["optional-dependencies"][extra]])
    imported: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
    modules = {name.split(".")[0] for name in imported} - sys.stdlib_module_names - ONLY_IF_THERE
    modules -= {Path(name).name for name in PACKAGES}
    sources = packages_distributions()

    missing = {name for name in modules if not there & {normal(source) for source in sources.get(name, ())}}
    assert missing == set()


@pytest.mark.parametrize("word", ["/wor" + "k/", "/roo" + "t/", "pythonhosted" + ".org", "pypi" + ".org"])
def test_no_file_names_a_machine_or_a_registry(word: str) -> None:
    """What is committed runs anywhere."""
    binary = {".png", ".bin"}
    guilty = [path for path in tracked() if path.suffix not in binary and word in path.read_text(errors="replace")]

    assert guilty == []


def test_the_files_are_known_without_git(tmp_path: Path) -> None:
    """As in an archive of the repository, where the tests run too: none of what was made there counts."""
    made = (
        ".venv/bin/python",
        "plan/__pycache__/a.pyc",
        "dist/a.whl",
        "runs/digits/log",
        "charts/batchgrowth/charts/a",
    )
    for name in ("README.md", "plan/data/runs/a.py", ".ci/run", *made):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert tracked(tmp_path) == [tmp_path / name for name in (".ci/run", "README.md", "plan/data/runs/a.py")]
    assert ROOT / "Makefile" in tracked()


def test_the_trainer_names_the_dtype_of_its_tensors() -> None:
    """A workload may call torch.set_default_dtype; what is no workload itself must not follow it."""
    makers = {"zeros", "ones", "empty", "full", "eye", "linspace"}
    guilty = []
    for path in (ROOT / "trainer" / "batchgrowth_trainer").rglob("*.py"):
        if path.parent.name == "workloads":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if ast.unparse(node.func.value) != "torch" or node.func.attr not in makers:
                continue
            if "dtype" not in {keyword.arg for keyword in node.keywords}:
                guilty.append(f"{path.relative_to(ROOT)}:{node.lineno}")

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
