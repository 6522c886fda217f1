"""What the manifest is made of: models with rules, string patterns, choices, and the Kubernetes structural schema."""

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import PydanticCustomError

# --- The base of every part of the manifest, and rules that pydantic and the API server both enforce ---
# A rule is one condition in Python and in CEL, side by side.
# Both are applied to the corpus in tests/corpus, so they cannot drift apart.

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


# --- Patterns of the manifest's strings, each with a description for error messages ---

DECIMAL = r"^(0|[1-9][0-9]{0,8})(\.[0-9]{1,12})?$"
ENTRYPOINT = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
JOB_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
NAMESPACE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
IMAGE = r"^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$"
STORE_URI = r"^(s3|gs|abfs)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._=-]*)*/?$"
MOUNT_PATH = r"^(/\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*)+$"
FILE_PATH = r"^(\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*/)*\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*$"
CONFIG_KEY = r"^\.?[A-Za-z0-9_-][A-Za-z0-9._-]*$"
QUANTITY = r"^([0-9]+(\.[0-9]{1,9})?)([mk]|[KMGTPE]i?|[eE][0-9]{1,2})?$"
STORAGE_SIZE = r"^[1-9][0-9]{0,5}[MGTP]i?$"
VARIABLE = r"^[A-Za-z_.-][A-Za-z0-9_.-]*$"
VOLUME_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

WORDS = {
    DECIMAL: 'a decimal number in quotes, such as "0.05", without sign or exponent, at most 12 digits after the point',
    ENTRYPOINT: 'a function as "package.module:function"',
    JOB_NAME: "lower-case letters, digits and dashes, beginning with a letter and ending with a letter or digit",
    OBJECT_NAME: "the name of a Kubernetes object: lower-case letters, digits, dashes and dots",
    NAMESPACE: "the name of a namespace: lower-case letters, digits and dashes",
    STORE_URI: "an object store that outlives the pods, as s3://, gs:// or abfs://BUCKET/PREFIX, without credentials; "
    "what file:// and memory:// name is lost with the trainer's pod",
    MOUNT_PATH: "the absolute path of a folder, without a slash at its end, such as /data",
    FILE_PATH: "a path below the folder of the code, such as package/module.py",
    CONFIG_KEY: "a key of the ConfigMap: letters, digits, dashes, underscores and dots",
    QUANTITY: 'an amount in quotes, such as "500m", "2" or "4Gi"',
    STORAGE_SIZE: "a whole number with a unit from M to Pi, such as 10Gi",
    VARIABLE: "the name of an environment variable",
    VOLUME_NAME: "lower-case letters, digits and dashes",
    IMAGE: 'a container image, such as "registry.example/team/trainer:1.0"',
}

DecimalText = Annotated[str, StringConstraints(pattern=DECIMAL, min_length=1, max_length=22)]
"""A number without rounding: floats do not survive a round trip through Kubernetes. `exact` gives its value."""
ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME, min_length=1, max_length=253)]
StoreUri = Annotated[str, StringConstraints(pattern=STORE_URI, min_length=8, max_length=512)]
"""A bucket, or a container of Azure, and a prefix below which nothing else is."""


# --- Choices of the manifest: a field such as `batch.growth.type` that names one entry of a registry ---
# An entry is a constant of one of the registry's modules, or an object that an installed distribution names in the
# registry's entry-point group. The schema, the CRD, the command line, dispatch, the documentation and the
# contract tests are derived from the registry, so adding an entry means adding one constant.

NAME = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One choice.

    `name` is how the manifest spells it, `summary` one line of documentation without a full stop, `source` where the
    method comes from, `block` the model of its settings, and `example` settings that are valid in a small job.
    `implementation` is the object that does the work, or "package.module:name", which is imported when first used.
    `outer_rules` are rules about fields outside the block, by the name of the model that encloses all of them.
    """

    name: str
    summary: str
    implementation: Any
    source: str = ""
    block: type[Model] | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    outer_rules: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)

    @property
    def block_name(self) -> str:
        """The field of the block in the manifest: AdamW's is adamW, SGD's is sgd, RMSprop's is rmsprop."""
        return re.sub(r"^[A-Z]+", lambda letters: letters[0].lower(), self.name)

    @property
    def needs_block(self) -> bool:
        """True if the block has a setting without a default."""
        return self.block is not None and any(one.is_required() for one in self.block.model_fields.values())

    def load(self) -> Any:
        """The implementation, imported if necessary."""
        named = isinstance(self.implementation, str)
        return pkgutil.resolve_name(self.implementation) if named else self.implementation


AnyEntry = TypeVar("AnyEntry", bound=Entry)


class Registry(Mapping[str, AnyEntry]):
    """The entries of one choice: the default first, then by name."""

    def __init__(self, field_path: str, default: str, kind: type[AnyEntry], *modules: ModuleType) -> None:
        """Collect the entries that `modules` define, and those of installed distributions.

        `field_path` is the choosing field below spec. Raises TypeError if a distribution's entry is of another kind,
        or if a name is taken or unsuitable.
        """
        self.field_path = field_path
        self.default = default
        self._entries: dict[str, AnyEntry] = {}
        for module in modules:
            for value in vars(module).values():
                if isinstance(value, kind):
                    self._add(value, module.__name__, kind)
        for point in entry_points(group=self.group):
            self._add(point.load(), point.value, kind)
        names = sorted(self._entries, key=lambda name: (name != default, name))
        self._entries = {name: self._entries[name] for name in names}

    @property
    def group(self) -> str:
        """The entry-point group of third parties: batchgrowth.batch.growth.type, for example."""
        return f"batchgrowth.{self.field_path}"

    @property
    def description(self) -> str:
        """One sentence for the schema: what each entry does, and which is the default."""
        listed = "; ".join(f"{entry.name} {entry.summary}" for entry in self.values())
        return f"{listed}. Default: {self.default}."

    def __getitem__(self, name: str) -> AnyEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def outer_rules(self, model: str) -> tuple[Rule, ...]:
        """The rules that entries add to an enclosing model."""
        return tuple(rule for entry in self.values() for rule in entry.outer_rules.get(model, ()))

    def _add(self, entry: Any, where: str, kind: type[AnyEntry]) -> None:
        if not isinstance(entry, kind) or not NAME.fullmatch(entry.name) or entry.name in self._entries:
            raise TypeError(f"{where}: {entry!r}; give a {kind.__name__} with a CamelCase name that is not taken yet")
        self._entries[entry.name] = entry


class Choice(Model):
    """A part of the manifest with a field that names an entry, and one optional block for each entry with settings."""

    registry: ClassVar[Registry[Any]]
    chooser: ClassVar[str] = "type"

    @property
    def entry(self) -> Any:
        """The entry that was chosen."""
        return self.registry[getattr(self, self.chooser)]

    @property
    def settings(self) -> Any:
        """The block of the chosen entry; None if the entry has no settings."""
        return None if self.entry.block is None else getattr(self, to_snake(self.entry.block_name))

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_block(cls, given: Any) -> Any:
        """Adds the chosen entry's block with its defaults, so that `settings` is never None by omission."""
        if not isinstance(given, dict):
            return given
        chosen = given.get(cls.chooser, cls.registry.default)
        if not isinstance(chosen, str) or chosen not in cls.registry:
            return given
        entry = cls.registry[chosen]
        spellings = {entry.block_name, to_snake(entry.block_name)}
        if entry.block is None or entry.needs_block or any(given.get(name) is not None for name in spellings):
            return given
        return {name: value for name, value in given.items() if name not in spellings} | {entry.block_name: {}}


AnyChoice = TypeVar("AnyChoice", bound=Choice)


def choice_of(registry: Registry[Any], chooser: str = "type") -> Callable[[type[AnyChoice]], type[AnyChoice]]:
    """A decorator that adds the choosing field and the entries' blocks, with their rules, to a model."""

    def complete(model: type[AnyChoice]) -> type[AnyChoice]:
        chosen = Literal.__getitem__(tuple(registry))
        fields: dict[str, Any] = {chooser: (chosen, Field(registry.default, description=registry.description))}
        for entry in registry.values():
            if entry.block is not None:
                text = f"The settings of {entry.name}; only with {chooser} {entry.name}."
                fields[to_snake(entry.block_name)] = (
                    entry.block | None,
                    Field(None, alias=entry.block_name, description=text),
                )
        made = create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
        )
        made.registry, made.chooser = registry, chooser
        made.rules = (
            *model.rules,
            *(_block_rule(entry, chooser) for entry in registry.values() if entry.block is not None),
        )
        return made

    return complete


def _block_rule(entry: Entry, chooser: str) -> Rule:
    block, attribute, name = entry.block_name, to_snake(entry.block_name), entry.name
    if entry.needs_block:
        return Rule(
            block,
            f"give the block {block} with {chooser} {name}, and with no other {chooser}",
            lambda m: (getattr(m, chooser) == name) == (getattr(m, attribute) is not None),
            f"(self.{chooser} == '{name}') == has(self.{block})",
        )
    return Rule(
        block,
        f"give the block {block} with {chooser} {name} only",
        lambda m: getattr(m, attribute) is None or getattr(m, chooser) == name,
        f"!has(self.{block}) || self.{chooser} == '{name}'",
    )


# --- Pydantic's JSON schema as a Kubernetes structural schema ---
# A structural schema has no `$ref`, no unions with null, no titles, no `additionalProperties: false` and no `const`.

KEPT = (
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
    "maxProperties",
)
LARGEST_INT32 = 2**31 - 1

Schema = dict[str, Any]


def structural_schema(model: type[BaseModel]) -> Schema:
    """The model as a structural schema with every reference inlined. Raises TypeError if the model has unions."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Schema, defs: Schema) -> Schema:
    node = _without_null(_written_out(node, defs), defs)
    if "anyOf" in node or "oneOf" in node:
        raise TypeError(f"a structural schema has no unions: {node}")
    result = {key: node[key] for key in KEPT if key in node}
    result |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    if "const" in node:
        result |= {"enum": [node["const"]]}
    if node.get("type") == "integer":
        result["format"] = "int32" if node["maximum"] <= LARGEST_INT32 else "int64"
    if node.get("default") is not None:
        # Written in full: an API server checks a default's rules before it fills in the defaults inside it.
        result["default"] = _without_nothing(node["default"])
    elif node.get("type") == "object" and "properties" not in node and "default" not in node:
        result["default"] = {}
    if "items" in node:
        result["items"] = _convert(node["items"], defs)
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(node["additionalProperties"], defs)
    return result | _fields(node, defs)


def _without_nothing(default: Any) -> Any:
    if not isinstance(default, dict):
        return default
    return {name: _without_nothing(value) for name, value in default.items() if value is not None}


def _fields(node: Schema, defs: Schema) -> Schema:
    if "properties" not in node:
        return {}
    fields: Schema = {"properties": {name: _convert(child, defs) for name, child in node["properties"].items()}}
    if node.get("required"):
        fields["required"] = sorted(node["required"])
    return fields


def _written_out(node: Schema, defs: Schema) -> Schema:
    """The node with its reference inlined; keys beside the reference win."""
    if "$ref" not in node:
        return node
    target: Schema = defs[node["$ref"].removeprefix("#/$defs/")]
    return target | {key: value for key, value in node.items() if key != "$ref"}


def _without_null(node: Schema, defs: Schema) -> Schema:
    """`X or null` as X: an absent field is how Kubernetes says null."""
    branches = [branch for branch in node.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) != 1:
        return node
    return _written_out(branches[0], defs) | {key: value for key, value in node.items() if key != "anyOf"}
