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
MOST_MANIFESTS = 2
"""How many manifests of a fault have a link each; if there are more, one link leads to the file that marks them."""
HEAD = "| fault | what happens | what batchgrowth does | shown by |\n|---|---|---|---|\n"


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
    """docs/faults.md: a table for each group of faults."""
    rows, shown = read_faults(), proofs(ROOT / "tests")
    tables = [
        f"## {title}\n\n{HEAD}" + "".join(_row(row, shown) for row in rows.values() if row.id[0] == group)
        for group, title in GROUPS.items()
        if any(row.id[0] == group for row in rows.values())
    ]
    return (
        "# Faults\n\nWhat can go wrong, what batchgrowth then does, and which tests show it. Tests cover "
        f"{len(shown.keys() & rows.keys())} of {len(rows)} faults; for the others the last column says why not.\n"
        'A manifest that is "refused" is refused by the API server and by `batchgrowth check`, with a message that '
        "names the field, unless the row says otherwise. "
        "A fault that a job survives does not change its weights.\n"
        "A test's folder is its [tier](../tests/README.md); a manifest in `tests/corpus/bad` is a test too. "
        "`grep -rn 'fault.*B18' tests` finds the tests of fault B18.\n\n"
        "`make generate` writes this page from `docs/faults.toml` and the marks of the tests.\n\n" + "\n".join(tables)
    )


def _row(row: Fault, shown: Mapping[str, list[Proof]]) -> str:
    proof = _links(shown[row.id]) if row.id in shown else f"nothing: {row.open}"
    return f"| {row.id} | {row.happens} | {row.does} | {proof} |\n"


def _links(some: list[Proof]) -> str:
    """Return a link to each file of tests and to each manifest, once and in their order; many manifests are one link.

    A file's text is its tier and its name, without the folders between them.
    """
    paths = [Path(path) for path in dict.fromkeys(proof.path for proof in some)]
    manifests = [path for path in paths if path.suffix == ".yaml"]
    links = [
        f"[{path.parts[0]}/{path.stem}](../tests/{path.as_posix()})"
        for path in paths
        if path not in manifests or len(manifests) <= MOST_MANIFESTS
    ]
    if len(manifests) > MOST_MANIFESTS:
        links.insert(0, f"[{len(manifests)} manifests](../tests/corpus/expected.yaml)")
    return ", ".join(links)
