"""The base of every part of the manifest, and rules that pydantic and the API server both enforce.

A rule is one condition in Python and in CEL, side by side.
Both are applied to the corpus in tests/corpus, so they cannot drift apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import PydanticCustomError

RULES_BROKEN = "rules_broken"
"""The type of the pydantic error whose context lists every broken rule of a model."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the fields of one model.

    `field` is the path, below the model, of the field that messages name, `remedy` what would do, `holds` the condition
    in Python, and `cel` the same for the API server, or None if CEL cannot express it.
    """

    field: str
    remedy: str
    holds: Callable[[Any], bool]
    cel: str | None


def rules_in_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Adds the rules that CEL can express to the JSON schema of their model."""
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
        json_schema_extra=rules_in_schema,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _follow_the_rules(self) -> Self:
        broken = [(rule.field, self.value_at(rule.field), rule.remedy) for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError(RULES_BROKEN, "{summary}", {"broken": broken, "summary": summary_of(broken)})
        return self

    def value_at(self, path: str) -> Any:
        """The value at a dotted camelCase path below this model; None if an optional block is absent."""
        value: Any = self
        for name in path.split("."):
            value = getattr(value, to_snake(name), None)
        return value


def summary_of(broken: list[tuple[str, Any, str]]) -> str:
    """One sentence for callers that build models in Python and read pydantic's error."""
    return "; ".join(f"{field}: {remedy}" for field, _, remedy in broken)


def exact(text: str) -> Fraction:
    """The exact value of a decimal string of the manifest, such as "0.05". Raises ValueError for other text."""
    return Fraction(text)
