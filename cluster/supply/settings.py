"""The project's rules for what it is made of: [tool.batchgrowth] of pyproject.toml."""

from __future__ import annotations

import tomllib
from datetime import date
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.errors import HarnessError


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stated(_Table):
    """A licence as an SPDX expression, read by a person, and why the metadata does not suffice."""

    licence: str = Field(min_length=1)
    reason: str = Field(min_length=1)


class Licences(_Table):
    """The SPDX identifiers that a dependency may have, and what people read by distribution."""

    allowed: frozenset[str] = Field(min_length=1)
    stated: dict[str, Stated] = {}


class Accepted(_Table):
    """A known vulnerability that does not stop a change: why, and until which day."""

    id: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    until: date


class Settings(_Table):
    """The whole table."""

    licences: Licences
    advisories: tuple[Accepted, ...] = ()


def read_settings(text: str) -> Settings:
    """Returns the settings in the text of pyproject.toml. Raises HarnessError naming each wrong key."""
    table: Any = tomllib.loads(text).get("tool", {}).get("batchgrowth", {})
    try:
        return Settings.model_validate(table)
    except ValidationError as error:
        faults = [
            f"tool.batchgrowth.{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors()
        ]
        raise HarnessError("pyproject.toml: " + "; ".join(faults)) from error
