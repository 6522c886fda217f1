"""Choices of the manifest: a field such as `batch.growth.type` that names one entry of a registry.

An entry is a constant of one of the registry's modules, or an object that an installed distribution names in the
registry's entry-point group. The schema, the CRD, the command line, dispatch, the documentation and the contract tests
are derived from the registry, so adding an entry means adding one constant.

`Entry.idle` returns, from a job's finished plan, a Fault for each setting of the choice that can never act: its field,
why it cannot, and what would let it act. notes.py shows the faults as notes, since such a job can be trained.
"""

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, create_model, model_validator
from pydantic.alias_generators import to_snake

from batchgrowth.errors import Fault, counted
from batchgrowth.schema import Model, Rule
from batchgrowth.shards import shard_count

# --- Choices that can never act ---


@dataclass(frozen=True, slots=True)
class FinishedPlan:
    """A job's spec with its finished plan.

    `grown` is the plan whose batch grows as fast as it may: the plan itself unless the growth is measured. The fields
    have no types here, because entries are loaded while the models of the spec are built: they are a JobSpec and two
    Plans.
    """

    spec: Any
    plan: Any
    grown: Any

    @property
    def moves(self) -> bool:
        """Return True if the growth changes the batch or the learning rate between two stages."""
        return len({(stage.batch_size, stage.rate) for stage in self.grown.stages}) > 1

    @property
    def largest_batch(self) -> int:
        """Return the largest batch size of the job."""
        return int(max(stage.batch_size for stage in self.grown.stages))

    @property
    def most_workers(self) -> int:
        """Return the most workers that a stage requests."""
        return int(max(stage.workers for stage in self.grown.stages))

    def shards_of(self, batch_size: int) -> int:
        """Return the number of shards of a batch of that size, which takes no more examples than there are."""
        return shard_count(min(batch_size, self.plan.examples_per_epoch), self.plan.shard, self.plan.replicas)


Faults = tuple[Fault, ...]


def always_acts(job: FinishedPlan) -> Faults:  # noqa: ARG001
    """Return nothing: the entry acts in every job."""
    return ()


def growth_idle(job: FinishedPlan) -> Faults:
    """Return why the batch never grows and the learning rate never follows it; nothing if one of them does."""
    if job.moves:
        return ()
    growth = job.spec.batch.growth
    batch = job.spec.batch
    never = f"{growth.type} never changes the batch or the learning rate"
    if batch.maximum == batch.initial and not job.spec.learning_rate.entry.falls_past_maximum:
        return (
            Fault(
                "spec.batch.growth",
                f"{never}, since batch.maximum is batch.initial",
                f"give a batch.maximum larger than {batch.initial:,}",
            ),
        )
    if growth.entry.needs_noise and job.shards_of(batch.initial) < 2:
        examples = job.plan.examples_per_epoch
        given = f"{never}, since each update takes the {counted(examples, 'example')} in one shard"
        return (Fault("spec.batch.growth", given, smaller_shard(examples)),)
    if growth.entry.quantity:
        remedy = "give a larger mostChange"
        # With shards of one example, it is enough if a look adds half an example, which is rounded up to a shard.
        if growth.looks is None or batch.initial * (float(growth.looks.most_change) - 1) >= 0.5:
            remedy = "give a larger mostChange, or a smaller batch.shard"
        given = f"{never}, since a look may not change the batch by a whole shard"
        return (Fault("spec.batch.growth.looks", given, remedy),)
    coarser = growth.entry.coarser(growth.settings, job.plan.epochs, job.plan.updates, 1)
    if coarser is None:
        return (Fault("spec.batch.growth", never, "give settings with which it changes before the end"),)
    unit = "epochs"
    most = job.plan.epochs
    if coarser.field.endswith("Updates"):
        unit = "updates"
        most = job.plan.updates
    remedy = f"give a number below the {most:,} {unit} of the plan"
    if most == 1:
        remedy = "give more epochs"
    return (Fault(f"spec.batch.growth.{coarser.field}", f"{coarser.given:,}, so {never}", remedy),)


def rate_idle(job: FinishedPlan) -> Faults:
    """Return why the learning rate never follows the batch; nothing if it does, or if the growth itself is idle."""
    rate = job.spec.learning_rate
    if _same_batch_by_mistake(job) or any(stage.rate != Fraction(rate.initial) for stage in job.grown.stages):
        return ()
    return (_rate_stands(job),)


def gain_idle(job: FinishedPlan) -> Faults:
    """Return why the gain is 1 in every update; nothing if it may be more, or if the growth itself is idle."""
    initial = job.spec.batch.initial
    grows = any(stage.batch_size > initial for stage in job.grown.stages)
    if _same_batch_by_mistake(job):
        return ()
    if not grows:
        return (_rate_stands(job),)
    if job.shards_of(job.largest_batch) < 2:
        most = min(job.largest_batch, job.plan.examples_per_epoch)
        return (
            Fault(
                "spec.learningRate.rule",
                f"{job.spec.learning_rate.rule} never changes the learning rate, since each update takes at most "
                f"{counted(most, 'example')}, in one shard",
                smaller_shard(most),
            ),
        )
    return ()


def smaller_shard(examples: int) -> str:
    """Return the remedy for a rule that compares shards if an update of `examples` examples is a single shard."""
    if examples == 1:
        return "give more workload.examples: a single one cannot be divided into shards"
    return f"give a batch.shard below {examples:,}"


def _same_batch_by_mistake(job: FinishedPlan) -> bool:
    """Return True if a growth was chosen that never acts: its own note names the cause."""
    return not job.moves and job.spec.batch.growth.type != "Constant"


def _rate_stands(job: FinishedPlan) -> Fault:
    return Fault(
        "spec.learningRate.rule",
        f"{job.spec.learning_rate.rule} never changes the learning rate, since each batch has batch.initial, "
        f"{job.spec.batch.initial:,} examples",
        "leave the rule out, or let the batch grow",
    )


def schedule_idle(job: FinishedPlan) -> Faults:
    """Return why the schedule never changes the learning rate; nothing if it does."""
    schedule = job.plan.schedule
    last = job.plan.epochs - 1
    if schedule.factor(last) != schedule.factor(0):
        return ()
    path = "spec.learningRate.schedule"
    if last == 0:
        given = f"{job.spec.learning_rate.schedule.type} never changes the learning rate, which is constant in an epoch"
        return (Fault(path, given, "give 2 spec.epochs or more, or leave the schedule out"),)
    given = f"{job.spec.learning_rate.schedule.type} never changes the learning rate in {last + 1:,} epochs"
    return (Fault(path, given, "give settings with which it falls earlier"),)


# --- Entries and registries ---

NAME = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
"""The form of an entry's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One choice.

    `name` is the manifest's spelling, `summary` one line of documentation without a full stop, and `source` the origin
    of the method. `block` is the model of its settings, and `example` holds settings that are valid in a small job.
    `implementation` is the object that does the work, or "package.module:name", which is imported when first used.
    `outer_rules` are rules about fields outside the block, by the name of the model that encloses all of them.
    `idle` is a function (FinishedPlan) -> a Fault for each thing about this choice that can never act in that job.
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
        chosen = Literal.__getitem__(tuple(registry))  # Literal of names that only the registry knows
        fields: dict[str, Any] = {chooser: (chosen, Field(registry.default, description=registry.description))}
        for entry in registry.values():
            if entry.block is not None:
                text = f"The settings of {entry.name}; only with {chooser} {entry.name}."
                fields[to_snake(entry.block_name)] = (
                    entry.block | None,
                    Field(None, alias=entry.block_name, description=text),
                )
        # A model of pydantic takes no more fields once its class exists, so another one derives from it.
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
