"""What the manifest is made of: models with rules, patterns of strings, and the Kubernetes structural schema."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import PydanticCustomError

RULES_BROKEN = "rules_broken"
"""The type of the pydantic error whose context lists every broken rule of a model."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the fields of one model, in Python and in CEL side by side.

    `field` is the path, below the model, of the field that messages name ("" is the model itself), and `remedy` says
    what to give instead. `holds` is the condition in Python, which pydantic checks. `cel` is the same condition for the
    API server, or None if CEL cannot express it. Tests hold both to the corpus in tests/corpus, so they cannot drift
    apart.
    """

    field: str
    remedy: str
    holds: Callable[[Any], bool]
    cel: str | None


def decimal_rule(
    field: str,
    *,
    above: int | None = None,
    below: int | None = None,
    most: int | None = None,
    example: str = "",
    optional: bool = False,
) -> Rule:
    """Return the rule that a decimal of the manifest lies within these bounds; an optional one may be left out."""
    words = []
    conditions = []
    for wording, comparison, bound in (("more than", ">", above), ("below", "<", below), ("at most", "<=", most)):
        if bound is not None:
            words.append(f"{wording} {bound}")
            conditions.append(f"double(self.{field}) {comparison} {bound}.0")
    remedy = "give a decimal " + " and ".join(words)
    if words == [f"at most {most}"]:
        remedy = f"give a decimal of at most {most}"
    if example:
        remedy += f', such as "{example}"'
    cel = " && ".join(conditions)
    if optional:
        cel = f"!has(self.{field}) || {cel}"

    def holds(model: "Model") -> bool:
        text = model.value_at(field)
        if optional and text is None:
            return True
        number = float(text)  # as the API server compares, so that a number which rounds to its bound is the bound
        return (
            (above is None or number > above) and (below is None or number < below) and (most is None or number <= most)
        )

    return Rule(field, remedy, holds, cel)


def module_rule(field: str) -> Rule:
    """Return the rule that an entrypoint names a module and not its file: `my_model.py:f` would be a module `py`."""
    return Rule(
        field,
        "give the module's name in place of its file's, such as my_model:workload",
        lambda model: ".py:" not in model.value_at(field),
        f"!self.{field}.contains('.py:')",
    )


def rules_in_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the rules that CEL can express to the JSON schema of their model."""
    validations = [
        {"rule": rule.cel, "message": f"{rule.field}: {rule.remedy}", "fieldPath": "." + rule.field}
        for rule in getattr(model, "rules", ())
        if rule.cel is not None
    ]
    if validations:
        schema["x-kubernetes-validations"] = validations


class Stored(BaseModel):
    """A part of what Kubernetes stores of a job: frozen, strict, closed to unknown fields; camelCase in YAML."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra=rules_in_schema,
    )


class Model(Stored):
    """A part of the manifest, with rules that join several of its fields."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _follow_the_rules(self) -> Self:
        # Every broken rule in one error, so that a user can mend all of them at once.
        broken = [(rule.field, self.value_at(rule.field), rule.remedy) for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError(RULES_BROKEN, "{summary}", {"broken": broken, "summary": summary_of(broken)})
        return self

    def value_at(self, path: str) -> Any:
        """Return the value at a dotted camelCase path below this model; None if an optional block is absent."""
        value: Any = self
        for name in filter(None, path.split(".")):
            attribute = to_snake(name)
            if not hasattr(value, attribute):
                attribute = name  # to_snake makes beta_1 of beta1
            value = getattr(value, attribute, None)
        return value


def summary_of(broken: list[tuple[str, Any, str]]) -> str:
    """Return the faults as one sentence, for callers that build models in Python and read pydantic's error."""
    return "; ".join(f"{field}: {remedy}" for field, _, remedy in broken)


MOST_BEFORE_THE_POINT = 9
MOST_AFTER_THE_POINT = 20
"""The most digits of a decimal of the manifest; one with more needs an exponent."""
# Two digits of an exponent, since a Fraction of 1e999999999 would fill the memory.
DECIMAL = (
    rf"^(0|[1-9][0-9]{{0,{MOST_BEFORE_THE_POINT - 1}}})(\.[0-9]{{1,{MOST_AFTER_THE_POINT}}})?([eE][-+]?[0-9]{{1,2}})?$"
)
ENTRYPOINT = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
JOB_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
JOB_NAME_START = r"^[a-z][-a-z0-9]*$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
NAMESPACE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
IMAGE = r"^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$"
STORE_URI = r"^(s3|gs|abfs)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._=-]*)*/?$"
MOUNT_PATH = r"^(/\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*)+$"
SHA256 = r"^[0-9a-f]{64}$"
FILE_PATH = r"^(\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*/)*\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*$"
CONFIG_KEY = r"^\.?[A-Za-z0-9_-][A-Za-z0-9._-]*$"
QUANTITY = r"^([0-9]+(\.[0-9]{1,9})?)([mk]|[KMGTPE]i?|[eE][0-9]{1,2})?$"
STORAGE_SIZE = r"^[1-9][0-9]{0,5}[MGTP]i?$"
VARIABLE = r"^[A-Za-z_.-][A-Za-z0-9_.-]*$"
LABEL_VALUE = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
QUALIFIED_NAME = (
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9]|[A-Za-z0-9][-A-Za-z0-9_.]{0,61}[A-Za-z0-9])"
)
PARAMETER_NAMES = r"^[A-Za-z0-9_.*-]+$"
VOLUME_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

WORDS = {
    DECIMAL: 'a decimal number in quotes, such as "0.05", without a sign, at most 20 digits after the point',
    ENTRYPOINT: 'a function as "package.module:function"',
    JOB_NAME: "lower-case letters, digits and dashes, beginning with a letter and ending with a letter or digit",
    JOB_NAME_START: "lower-case letters, digits and dashes, beginning with a letter",
    OBJECT_NAME: "the name of a Kubernetes object: lower-case letters, digits, dashes and dots",
    NAMESPACE: "the name of a namespace: lower-case letters, digits and dashes",
    STORE_URI: "an object store that outlives the pods, as s3://, gs:// or abfs://BUCKET/PREFIX, without credentials; "
    "what file:// and memory:// name is lost with the trainer's pod",
    MOUNT_PATH: "the absolute path of a folder, without a slash at its end, such as /data",
    FILE_PATH: "a path below the folder of the code, such as package/module.py",
    CONFIG_KEY: "a key of the ConfigMap: letters, digits, dashes, underscores and dots",
    SHA256: "a SHA-256: 64 hexadecimal digits in lower case",
    QUANTITY: 'an amount in quotes, such as "500m", "2" or "4Gi"',
    STORAGE_SIZE: "a whole number with a unit from M to Pi, such as 10Gi",
    LABEL_VALUE: "letters, digits, dashes, dots and underscores, beginning and ending with a letter or digit",
    PARAMETER_NAMES: "a pattern of names: letters, digits, dots, dashes, underscores, and * for any characters",
    VARIABLE: "the name of an environment variable",
    VOLUME_NAME: "lower-case letters, digits and dashes",
    IMAGE: 'a container image, such as "registry.example/team/trainer:1.0"',
}

DecimalText = Annotated[str, StringConstraints(pattern=DECIMAL, min_length=1, max_length=34)]
"""A number without rounding: floats do not survive a round trip through Kubernetes. Fraction gives its value.

Twenty digits after the point hold every float that Python prints without an exponent, such as 0.1 + 0.2.
"""
ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME, min_length=1, max_length=253)]
StoreUri = Annotated[str, StringConstraints(pattern=STORE_URI, min_length=8, max_length=512)]
"""A bucket, or a container of Azure, and a prefix that no other job uses."""


# Kubernetes' structural schema is a narrower form of JSON schema: it has no `$ref`, no unions with null, no titles, no
# `additionalProperties: false` and no `const`.

_KEPT = (
    "description",
    "type",
    "enum",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
LARGEST_INT32 = 2**31 - 1

Schema = dict[str, Any]


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the model as a structural schema without references. Raises TypeError for a union other than with None."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Schema, defs: Schema) -> Schema:
    """Return the part of a JSON schema in Kubernetes' form."""
    node = _inlined(node, defs)
    branches = [branch for branch in node.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) == 1:
        # `X or null` becomes X: an optional field of Kubernetes is absent, not null.
        node = _inlined(branches[0], defs) | {key: value for key, value in node.items() if key != "anyOf"}
    if "anyOf" in node or "oneOf" in node:
        raise TypeError(f"a structural schema has no unions: {node}")
    result = {key: node[key] for key in _KEPT if key in node}
    result |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    if "const" in node:
        result |= {"enum": [node["const"]]}
    if node.get("type") == "integer":
        result["format"] = "int32" if node["maximum"] <= LARGEST_INT32 else "int64"
    if node.get("default") is not None:
        # The default is written in full, since an API server checks its rules before it fills in defaults inside it.
        result["default"] = _without_nulls(node["default"])
    elif node.get("type") == "object" and "properties" not in node and "default" not in node:
        result["default"] = {}  # pydantic tells nothing of a default_factory, which every such map has
    if "items" in node:
        result["items"] = _convert(node["items"], defs)
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(node["additionalProperties"], defs)
    if "properties" in node:
        result["properties"] = {name: _convert(child, defs) for name, child in node["properties"].items()}
        if node.get("required"):
            result["required"] = sorted(node["required"])
    return result


def _without_nulls(default: Any) -> Any:
    if not isinstance(default, dict):
        return default
    return {name: _without_nulls(value) for name, value in default.items() if value is not None}


def _inlined(node: Schema, defs: Schema) -> Schema:
    """Return the node with its reference inlined; the node's own keys override keys of the referenced schema."""
    if "$ref" not in node:
        return node
    target: Schema = defs[node["$ref"].removeprefix("#/$defs/")]
    return target | {key: value for key, value in node.items() if key != "$ref"}
