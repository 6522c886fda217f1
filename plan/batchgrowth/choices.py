"""Every choice of the manifest in one list, for the command line's help and the documentation."""

from __future__ import annotations

import json
import re
from typing import Any

from batchgrowth.exchanges import EXCHANGES
from batchgrowth.growth import GROWTH
from batchgrowth.learning_rates import LEARNING_RATES
from batchgrowth.optimizers import OPTIMIZERS
from batchgrowth.schema.choice import Entry, Registry

CHOICES: tuple[Registry[Any], ...] = (GROWTH, LEARNING_RATES, OPTIMIZERS, EXCHANGES)

BEGIN, END = "<!-- choices: made by `make generate` -->\n", "<!-- /choices -->"


def choices_help() -> str:
    """One paragraph per choice: the field and its names. The epilog of the commands that read a manifest."""
    return "\n\n".join(f"{choice.field_path}: {', '.join(choice)}" for choice in CHOICES)


def choices_table() -> str:
    """The Markdown table of README.md: a row per choice."""
    rows = (f"| `{choice.field_path}` | {', '.join(map(_named, choice.values()))} |\n" for choice in CHOICES)
    return "| in the manifest | choices |\n|---|---|\n" + "".join(rows)


def with_choices(text: str) -> str:
    """A Markdown page with its table of choices replaced; raises ValueError if it has no markers for one."""
    made, count = re.subn(f"({BEGIN}).*?({END})", lambda m: m[1] + choices_table() + m[2], text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page has {count} tables of choices; give one pair of markers {BEGIN!r} and {END!r}")
    return made


def choices_page() -> str:
    """docs/choices.md: a table of entries with their settings for each choice."""
    head = "| name | what it does | settings | source |\n|---|---|---|---|\n"
    parts = [f"## `{choice.field_path}`\n\n{head}" + "".join(map(_row, choice.values())) for choice in CHOICES]
    return (
        "# Choices of the manifest\n\nWhat each choosing field below `spec` may name; the first name is the default.\n"
        "Your own entries join these tables: [extending.md](extending.md).\n"
        "Made from the registries by `make generate`; a test fails if this page differs.\n\n" + "\n".join(parts)
    )


def _named(entry: Entry) -> str:
    return f"`{entry.name}` ({entry.summary})"


def _row(entry: Entry) -> str:
    fields = entry.block.model_fields if entry.block is not None else {}
    settings = ", ".join(
        f"`{field.alias}`" + ("" if field.is_required() else f" (default {json.dumps(field.default)})")
        for field in fields.values()
    )
    return f"| `{entry.name}` | {entry.summary} | {settings} | {entry.source} |\n"
