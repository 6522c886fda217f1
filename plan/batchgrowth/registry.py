"""Choices of the manifest: a field such as `batch.growth.type` that names one entry of a registry.

An entry is a constant of one of the registry's modules, or an object that an installed distribution names in the
registry's entry-point group. The schema, the CRD, the command line, dispatch, the documentation and the contract tests
are derived from the registry, so adding an entry means adding one constant.
"""

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, create_model, model_validator
from pydantic.alias_generators import to_snake

from batchgrowth.idle import Faults, FinishedPlan, always_acts
from batchgrowth.schema import Model, Rule

NAME = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
"""The form of an entry's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One choice.

    `name` is the manifest's spelling, `summary` one line of documentation without a full stop, and `source` the origin
    of the method. `block` is the model of its settings, and `example` holds settings that are valid in a small job.
    `implementation` is the object that does the work, or "package.module:name", which is imported when first used.
    `outer_rules` are rules about fields outside the block, by the name of the model that encloses all of them.
    `idle` is a function (idle.FinishedPlan) -> a Fault for each thing about this choice that can never act in that job.
    """

    name: str
    summary: str
    implementation: Any
    source: str = ""
    block: type[Model] | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    outer_rules: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    idle: Callable[[FinishedPlan], Faults] = always_acts

    @property
    def block_name(self) -> str:
        """Return the field of the block in the manifest: adamW for AdamW, sgd for SGD, rmsprop for RMSprop."""
        return re.sub(r"^[A-Z]+", lambda letters: letters[0].lower(), self.name)

    @property
    def needs_block(self) -> bool:
        """Return True if the block has a setting without a default."""
        return self.block is not None and any(one.is_required() for one in self.block.model_fields.values())

    def load(self) -> Any:
        """Return the implementation, imported if necessary."""
        if isinstance(self.implementation, str):
            return pkgutil.resolve_name(self.implementation)
        return self.implementation


AnyEntry = TypeVar("AnyEntry", bound=Entry)


class Registry(Mapping[str, AnyEntry]):
    """The entries of one choice: the default first, then by name."""

    def __init__(self, field_path: str, default: str, kind: type[AnyEntry], *modules: ModuleType) -> None:
        """Collect the entries that `modules` define and the entries of installed distributions.

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
        # Installed distributions come after our own modules, so that none can take the name of one of our entries.
        for point in entry_points(group=self.group):
            self._add(point.load(), point.value, kind)
        # The order reaches the CRD, which must not depend on the order in which distributions are found.
        names = sorted(self._entries, key=lambda name: (name != default, name))
        self._entries = {name: self._entries[name] for name in names}

    @property
    def group(self) -> str:
        """Return the entry-point group of third parties, such as batchgrowth.batch.growth.type."""
        return f"batchgrowth.{self.field_path}"

    @property
    def description(self) -> str:
        """Return the schema's description of the field: what each entry does, and the default."""
        listed = "; ".join(f"{entry.name} {entry.summary}" for entry in self.values())
        return f"{listed}. Default: {self.default}."

    def __getitem__(self, name: str) -> AnyEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def outer_rules(self, model: str) -> tuple[Rule, ...]:
        """Return the rules that entries add to an enclosing model."""
        return tuple(rule for entry in self.values() for rule in entry.outer_rules.get(model, ()))

    def _add(self, entry: Any, where: str, kind: type[AnyEntry]) -> None:
        if not isinstance(entry, kind) or not NAME.fullmatch(entry.name) or entry.name in self._entries:
            raise TypeError(f"{where}: {entry!r}; give a {kind.__name__} with a CamelCase name that is not taken yet")
        self._entries[entry.name] = entry


class Choice(Model):
    """A part of the manifest that has a field naming an entry, and an optional block for each entry with settings."""

    registry: ClassVar[Registry[Any]]
    chooser: ClassVar[str] = "type"

    @property
    def entry(self) -> Any:
        """Return the entry that was chosen."""
        return self.registry[getattr(self, self.chooser)]

    @property
    def settings(self) -> Any:
        """Return the block of the chosen entry; None if the entry has no settings."""
        if self.entry.block is None:
            return None
        return getattr(self, to_snake(self.entry.block_name))

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_block(cls, given: Any) -> Any:
        """Add the chosen entry's block with its defaults, so that `settings` is never None by omission."""
        # This comes before pydantic reads the fields: models are frozen, and the block is checked like a written one.
        if not isinstance(given, dict):
            return given
        chosen = given.get(cls.chooser, cls.registry.default)
        if not isinstance(chosen, str) or chosen not in cls.registry:
            return given
        entry = cls.registry[chosen]
        spellings = {entry.block_name, to_snake(entry.block_name)}
        if entry.block is None or entry.needs_block or any(given.get(name) is not None for name in spellings):
            return given
        return given | {entry.block_name: {}}


AnyChoice = TypeVar("AnyChoice", bound=Choice)


def choice_of(registry: Registry[Any], chooser: str = "type") -> Callable[[type[AnyChoice]], type[AnyChoice]]:
    """Return a decorator that adds the choosing field and the entries' blocks, with their rules, to a model."""

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
        made.registry = registry
        made.chooser = chooser
        made.rules = (
            *model.rules,
            *(_block_rule(entry, chooser) for entry in registry.values() if entry.block is not None),
        )
        return made

    return complete


def _block_rule(entry: Entry, chooser: str) -> Rule:
    """Return the rule that an entry's block comes only with that entry, and must come if it has required settings."""
    name = entry.name
    block = entry.block_name
    attribute = to_snake(block)
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
