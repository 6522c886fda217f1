"""What every part of the manifest shares: its settings, and rules that pydantic and the CRD enforce alike.

A rule is written once, as the CEL text for the API server with the same sentence in Python beside it.
The corpus in tests/corpus is judged by both, so the two cannot part company unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import PydanticCustomError

RULES_BROKEN = "rules_broken"
"""The type of the one pydantic error that carries every broken rule of a model in its context."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A sentence about several fields of one model.

    `field` is the path, from the model, of the field that a message should name, `remedy` what would do, `holds` the
    sentence in Python and `cel` the same for the API server; None where CEL cannot see what Python can.
    """

    field: str
    remedy: str
    holds: Callable[[Any], bool]
    cel: str | None


def _json_schema_extra(schema: dict[str, Any], model: type[BaseModel]) -> None:
    rules = getattr(model, "rules", ())
    validations = [
        {"rule": rule.cel, "message": f"{rule.field}: {rule.remedy}", "fieldPath": "." + rule.field}
        for rule in rules
        if rule.cel is not None
    ]
    if validations:
        schema["x-kubernetes-validations"] = validations


class Model(BaseModel):
    """A part of the manifest: frozen, strict about types, closed to unknown fields; camelCase in YAML."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra=_json_schema_extra,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _follow_the_rules(self) -> Self:
        broken = [(rule.field, self.value_at(rule.field), rule.remedy) for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError(RULES_BROKEN, "{summary}", {"broken": broken, "summary": summary_of(broken)})
        return self

    def value_at(self, path: str) -> Any:
        """The value at a dotted camelCase path below this model; None where an optional block is absent."""
        value: Any = self
        for name in path.split("."):
            value = getattr(value, to_snake(name), None)
        return value


def summary_of(broken: list[tuple[str, Any, str]]) -> str:
    """One sentence for the callers who build models in Python and read pydantic's own error."""
    return "; ".join(f"{field}: {remedy}" for field, _, remedy in broken)


def exact(text: str) -> Fraction:
    """The exact value of a decimal string of the manifest, such as "0.05"; ValueError where it is none."""
    return Fraction(text)
