"""docs/exit-codes.md agrees with the tree of errors."""

import re
from pathlib import Path

from batchgrowth import errors

PAGE = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| ?`?(\w*)`? \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)


def test_every_error_has_its_row_with_its_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert {(str(kind.exit_code), kind.__name__) for kind in kinds} == {(code, name) for code, name, *_ in ROWS if name}
    assert len(kinds) + 1 == len(ROWS)


def test_every_row_says_when_and_what_to_do() -> None:
    assert ROWS[0][0] == "0"
    assert sorted(ROWS, key=lambda row: int(row[0])) == ROWS
    assert all(len(when) > 20 and what for _, _, when, what in ROWS)
