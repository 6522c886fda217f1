"""The table of mistakes that users make in a workload, from docs/mistakes.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
GROUPS = {
    "function": "The function that returns the workload",
    "model": "The model",
    "loss": "The loss and the metrics",
    "data": "The data",
    "manifest": "The manifest",
    "gpu": "On a GPU",
}
"""The groups of docs/mistakes.toml, and their headings."""
_TEXT = (ROOT / "docs" / "mistakes.toml").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One row: `code` is the user's module, `says` parts of the error's text, the remedy last.

    `error` is the name of its class, `other` a second module, `entry` the entrypoint, and `set` changes the manifest.
    One that `needs_gpu` is reported so on a GPU alone; all others are made on a CPU.
    """

    mistake: str
    code: str
    says: list[str]
    error: str = "WorkloadError"
    other: str = ""
    entry: str = "workload"
    set: list[str] = field(default_factory=list)
    needs_no_gpu: bool = False
    needs_gpu: bool = False


START: str = tomllib.loads(_TEXT)["start"]["code"].strip()
"""With which each of the modules begins."""


def read_mistakes() -> dict[str, Mistake]:
    """Return the rows of docs/mistakes.toml by name, in its order."""
    groups = tomllib.loads(_TEXT)
    return {f"{group}.{name}": Mistake(**row) for group in GROUPS for name, row in groups[group].items()}


def mistakes_page() -> str:
    """docs/mistakes.md: a list for each group."""
    mistakes = read_mistakes()
    lists = [
        f"## {title}\n\n" + _rows([row for name, row in mistakes.items() if name.startswith(f"{group}.")])
        for group, title in GROUPS.items()
    ]
    return (
        "# Mistakes and their errors\n\n"
        f"These {len(mistakes)} mistakes end a run with one paragraph: the line of your code, the layer of torch if "
        "one raised, and a remedy, which this page quotes with the names of an example.\n"
        "`--log-level debug` logs the whole traceback.\n"
        "See [exit codes](exit-codes.md), and [faults](faults.md) of machines.\n\n"
        "`make generate` writes this page from `docs/mistakes.toml`; tests make each mistake and read its error.\n\n"
        + "\n".join(lists)
    )


def _rows(mistakes: list[Mistake]) -> str:
    """Return a line for each remedy, with all mistakes that it helps."""
    helped: dict[str, list[str]] = {}
    for row in mistakes:
        helped.setdefault(row.says[-1], []).append(row.mistake)
    return "".join(f"- **{' '.join(some)}** {_code(remedy)}\n" for remedy, some in helped.items())


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
