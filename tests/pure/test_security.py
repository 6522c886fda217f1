"""docs/security.md names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
PROOF = re.compile(r"`(tests/[\w/.-]+\.py)::(\w+)`")


def proofs() -> list[tuple[str, str]]:
    """File and name of each test on the page."""
    return PROOF.findall(PAGE.read_text(encoding="utf-8"))


def functions_of(path: Path) -> set[str]:
    """The names of the file's tests; none if there is no such file."""
    if not path.is_file():
        return set()
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), proofs(), ids=lambda part: part.rpartition("/")[2])
def test_each_named_test_exists(file: str, name: str) -> None:
    assert name.startswith("test_")
    assert name in functions_of(ROOT / file)


def test_each_threat_has_its_proof() -> None:
    """A row has a threat, a control and at least one test."""
    table = PAGE.read_text(encoding="utf-8").split("## Threats")[1].split("## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]

    assert len(rows) >= 20
    assert all(len(row) == 3 and row[1].strip() and PROOF.findall(row[2]) for row in rows)


def test_a_test_that_is_gone_would_be_found() -> None:
    assert "test_gone" not in functions_of(ROOT / "tests/pure/test_security.py")
    assert functions_of(ROOT / "tests/pure/test_gone.py") == set()
