"""The table of faults: what happens and what batchgrowth does, from docs/faults.toml, and the tests that show it.

The link from a test to a fault stands with the test: `@pytest.mark.fault("B18")`, or `fault: A01` at a manifest of
tests/corpus/expected.yaml. Tests are parsed, not run.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
GROUPS = {
    "A": "Bad input",
    "B": "Control plane and operator",
    "C": "Scheduler, workers, nodes",
    "D": "Training, data, checkpoints",
    "E": "Security and abuse",
    "F": "Installation, upgrades, monitoring",
    "N": "As a new user",
    "T": "Training code",
    "O": "On ordinary clusters",
    "G": "Attacks on a run",
}
"""The first letter of an id, and what its faults have in common."""
TIERS = ("cluster", "apiserver", "gpu", "dask", "chart", "torch", "pure", "corpus")
"""The folders of tests/ that show faults, the closest to a user's machines first; a page links to a fault's first."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row: `happens` and `does` are sentences, `open` is why no test shows it, None if one does."""

    id: str
    happens: str
    does: str
    open: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Proof:
    """A test function of a file below tests/, or a manifest of the corpus, which is a file of its own."""

    path: str
    name: str


def read_faults() -> dict[str, Fault]:
    """Return the rows of docs/faults.toml by id, in its order."""
    rows = tomllib.loads((ROOT / "docs" / "faults.toml").read_text(encoding="utf-8"))
    return {key: Fault(id=key, **row) for key, row in rows.items()}


def proofs(tests: Path) -> dict[str, list[Proof]]:
    """Return the tests below a folder by the fault that they are marked with. Raises ValueError for an odd mark."""
    found: dict[str, set[Proof]] = {}
    for fault, proof in (*_marked(tests), *_manifests(tests)):
        found.setdefault(fault, set()).add(proof)
    return {fault: sorted(some) for fault, some in found.items()}


def _marked(tests: Path) -> Iterator[tuple[str, Proof]]:
    for path in tests.rglob("test_*.py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        where = path.relative_to(tests).as_posix()
        of_all = [fault for marks in _marks_of_module(module) for fault in _faults_of(marks, f"{where}: pytestmark")]
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                proof = Proof(where, node.name)
                own = list(_faults_of(node.decorator_list, f"{where}: {node.name}"))
                is_test = node.name.startswith("test_")
                yield from ((fault, proof) for fault in (own + of_all if is_test else own))


def _marks_of_module(module: ast.Module) -> Iterator[list[ast.expr]]:
    """Yield the marks that the file gives all of its tests."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]


def _faults_of(marks: list[ast.expr], where: str) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
            for argument in mark.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise ValueError(f"{where}: {ast.unparse(argument)}; give the fault's id in quotes")
                yield argument.value


def _manifests(tests: Path) -> Iterator[tuple[str, Proof]]:
    corpus = tests / "corpus" / "expected.yaml"
    for name, expected in yaml.safe_load(corpus.read_text(encoding="utf-8")).items() if corpus.exists() else ():
        if "fault" in expected:
            yield expected["fault"], Proof(f"corpus/bad/{name}.yaml", name)


def faults_page() -> str:
    """docs/faults.md: a list for each group of faults."""
    rows, shown = read_faults(), proofs(ROOT / "tests")
    lists = [
        f"## {title}\n\n" + "".join(_row(row, shown) for row in rows.values() if row.id[0] == group)
        for group, title in GROUPS.items()
        if any(row.id[0] == group for row in rows.values())
    ]
    return (
        "# Faults\n\nWhat can go wrong, what batchgrowth then does, and which tests show it: "
        f"{len(shown.keys() & rows.keys())} of {len(rows)} faults have tests.\n"
        'A manifest that is "refused" is refused by the API server and by `batchgrowth check`, with a message that '
        "names the field. A job that waits continues once the cause is gone. "
        "A fault that a job survives does not change its weights.\n"
        "A fault's id is a link to a file of tests; `grep -rn 'fault.*B18' tests` finds all tests of fault B18.\n\n"
        "`make generate` writes this page from `docs/faults.toml` and the marks of the tests.\n\n" + "\n".join(lists)
    )


def _row(row: Fault, shown: Mapping[str, list[Proof]]) -> str:
    if row.id in shown:
        return f"- [{row.id}](../tests/{_closest(shown[row.id])}) **{row.happens}** {row.does}\n"
    return f"- {row.id} **{row.happens}** {row.does} No test: {row.open}\n"


def _closest(some: list[Proof]) -> str:
    """Return the first file of the first tier; one of several manifests stands for all, in the file that marks them."""
    paths = sorted((proof.path for proof in some), key=lambda path: TIERS.index(Path(path).parts[0]))
    manifests = {path for path in paths if path.endswith(".yaml")}
    return "corpus/expected.yaml" if paths[0] in manifests and len(manifests) > 1 else paths[0]
