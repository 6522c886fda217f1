"""The warnings of an API server when a job is applied: the remarks of notes.py that follow from the spec alone.

CEL cannot make a plan, so `batchgrowth check` tells more. A policy of the chart with the action Warn evaluates the
warnings, which kubectl prints; the policy refuses nothing. tests/apiserver/test_admission_warnings.py compares the
warnings with `batchgrowth check`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from batchgrowth.choices import EXCHANGES, GROWTH, LEARNING_RATES, OPTIMIZERS, SCHEDULES
from batchgrowth.choices.optimizers import decay_idle
from batchgrowth.extend import always_acts
from batchgrowth.notes import SHORTEST_WARMUP
from batchgrowth.registry import Entry, gain_idle, rate_idle, schedule_idle
from batchgrowth.spec import Workers


@dataclass(frozen=True, slots=True)
class AdmissionWarning:
    """A remark in CEL, which may use VARIABLES and `spec`, the job's spec with its defaults.

    `when` is the condition of the warning. `field` (below spec), `given` and `remedy` are the parts of the Fault that
    `notes.remarks` returns under this condition; {braces} in them enclose the CEL of a number or a text.
    """

    field: str
    when: str
    given: str
    remedy: str

    @property
    def expression(self) -> str:
        """Return the expression of a policy's validation, which is false if the warning applies."""
        return f"!({_of_object(self.when)})"

    @property
    def message(self) -> str:
        """Return the policy's CEL for the sentence of `batchgrowth check`, without thousands separators."""
        parts = re.split(r"\{([^{}]*)\}", f"spec.{self.field}: {self.given}; {self.remedy}")
        texts = [f"string({_of_object(part)})" if place % 2 else f"'{part}'" for place, part in enumerate(parts)]
        return " + ".join(text for text in texts if text != "''")


def admission_warnings() -> tuple[AdmissionWarning, ...]:
    """Return every warning."""
    return (*_of_the_growth(), *_of_the_learning_rate(), *_of_optimizers(), *_of_exchanges(), *_of_the_rest())


def admission_variables() -> dict[str, str]:
    """Return the policy's variables, which several warnings share: name -> CEL."""
    return {name: _of_object(cel) for name, cel in VARIABLES.items()}


def _of_object(cel: str) -> str:
    """Return the CEL with `spec` renamed to `object.spec`, as a policy names it."""
    return re.sub(r"(?<![.\w])spec\.", "object.spec.", cel)


def _setting(place: str, entry: Entry, field: str) -> str:
    """Return the CEL of a setting of an exchange or optimizer, whose block may be left out."""
    assert entry.block is not None
    info = entry.block.model_fields[field]
    name = info.alias or field
    return f"spec.{place}.?{entry.block_name}.?{name}.orValue({_literal(info.default)})"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


VARIABLES = {
    "constant": f"spec.batch.growth.type in {[name for name, entry in GROWTH.items() if entry.idle is always_acts]}",
    "falls": (
        f"spec.learningRate.rule in {[name for name, entry in LEARNING_RATES.items() if entry.falls_past_maximum]}"
    ),
    "steps": "has(spec.batch.growth.milestones) ? spec.batch.growth.milestones.steps : []",
    "byEpoch": "variables.steps.size() > 0 && variables.steps.all(step, has(step.epoch))",
    # The step that reaches the maximum still acts, so this is the index of the first that does not.
    "stepsToMaximum": "variables.steps.filter(step, step.batchSize < spec.batch.maximum).size() + 1",
    "hasNoRoom": (
        "spec.batch.maximum == spec.batch.initial && !variables.constant && !variables.falls && "
        "variables.steps.all(step, step.batchSize >= spec.batch.initial)"
    ),
    "withoutWorkers": (
        f"spec.exchange.type in {[name for name, entry in EXCHANGES.items() if not entry.uses_workers]}"
    ),
    "comparesShards": (
        f"spec.batch.growth.type in {[name for name, entry in GROWTH.items() if entry.needs_noise]} || "
        f"spec.learningRate.rule in {[name for name, entry in LEARNING_RATES.items() if entry.gain]}"
    ),
    "shard": "has(spec.batch.shard) ? spec.batch.shard : spec.workers.examplesPerWorker",
    "fewestUpdates": "spec.epochs * ((spec.workload.examples + spec.batch.maximum - 1) / spec.batch.maximum)",
    "shared": "spec.batch.maximum / spec.workers.examplesPerWorker",
    "mostWorkers": "variables.shared > spec.workers.minimum ? variables.shared : spec.workers.minimum",
}
"""Name -> CEL that several conditions share; a variable may use the variables before it."""


def _of_the_growth() -> Iterator[AdmissionWarning]:
    never = "never changes the batch or the learning rate"
    yield AdmissionWarning(
        "batch.growth",
        "variables.hasNoRoom",
        f"{{spec.batch.growth.type}} {never}, since batch.maximum is batch.initial",
        "give a batch.maximum larger than {spec.batch.initial}",
    )
    every = "spec.batch.growth.geometric.everyEpochs"
    yield AdmissionWarning(
        every.removeprefix("spec."),
        f"spec.batch.growth.type == 'Geometric' && {every} >= spec.epochs && !variables.hasNoRoom",
        f"{{{every}}}, so Geometric {never}",
        "give {spec.epochs == 1 ? 'more epochs' : 'a number below the ' + string(spec.epochs) + ' epochs of the plan'}",
    )
    step = "variables.steps[variables.stepsToMaximum].batchSize"
    yield AdmissionWarning(
        "batch.growth.milestones.steps[{variables.stepsToMaximum}].batchSize",
        "variables.byEpoch && variables.stepsToMaximum < variables.steps.size() && !variables.falls && "
        "!variables.hasNoRoom",
        f"{{{step}}} is more than batch.maximum, {{spec.batch.maximum}}, which the batch has already",
        f"give a batch.maximum of {{{step}}}, or leave the step out",
    )
    last = "variables.steps[variables.steps.size() - 1].batchSize"
    # The sizes of a list by epoch only rise, so the last is the largest. Those of a list by update may fall.
    for growth, largest in (("constant", "spec.batch.initial"), ("byEpoch", last)):
        yield AdmissionWarning(
            "batch.maximum",
            f"variables.{growth} && {largest} < spec.batch.maximum",
            f"{{spec.batch.maximum}} is not reached: the largest batch is {{{largest}}}",
            f"give {{{largest}}}, or a growth that reaches more",
        )
    examples = "spec.workload.examples"
    yield AdmissionWarning(
        "batch.initial",
        "spec.batch.initial > spec.workload.examples",
        f"{{spec.batch.initial}} is more than the {{{examples}}} {{{examples} == 1 ? 'example' : 'examples'}} of the "
        "data, so an epoch has 1 update, which takes them all",
        f"give at most {{{examples}}}, and maximum "
        f"{{!variables.comparesShards || variables.shard < {examples} ? 'too' : "
        f"{examples} == 1 ? 'too, with a growth and a rule that compare no shards' : "
        f"'too, with a batch.shard below ' + string({examples})}}",
    )


def _of_the_learning_rate() -> Iterator[AdmissionWarning]:
    following = [name for name, entry in LEARNING_RATES.items() if entry.idle in (rate_idle, gain_idle)]
    yield AdmissionWarning(
        "learningRate.rule",
        f"spec.learningRate.rule in {following} && variables.constant",
        "{spec.learningRate.rule} never changes the learning rate, since each batch has batch.initial, "
        "{spec.batch.initial} examples",
        "leave the rule out, or let the batch grow",
    )
    schedules = [name for name, entry in SCHEDULES.items() if entry.idle is schedule_idle]
    yield AdmissionWarning(
        "learningRate.schedule",
        f"has(spec.learningRate.schedule) && spec.learningRate.schedule.type in {schedules} && spec.epochs == 1",
        "{spec.learningRate.schedule.type} never changes the learning rate, which is constant in an epoch",
        "give 2 spec.epochs or more, or leave the schedule out",
    )
    warmup = "spec.learningRate.warmup"
    yield AdmissionWarning(
        "learningRate.warmup.updates",
        f"has({warmup}) && {warmup}.updates == 1 && variables.fewestUpdates >= {2 * SHORTEST_WARMUP}",
        "1, so the first update has the whole learning rate",
        "give 2 or more",
    )
    yield AdmissionWarning(
        "learningRate.warmup.initial",
        f"has({warmup}) && {warmup}.updates > 1 && double({warmup}.initial) == double(spec.learningRate.initial)",
        f"{{{warmup}.initial}} is learningRate.initial, so nothing rises",
        "give less",
    )


def _of_optimizers() -> Iterator[AdmissionWarning]:
    for name, entry in OPTIMIZERS.items():
        if entry.idle is decay_idle:
            block = entry.block_name
            yield AdmissionWarning(
                "optimizer.withoutDecay",
                f"spec.optimizer.type == '{name}' && has(spec.optimizer.withoutDecay) && "
                f"double({_setting('optimizer', entry, 'weight_decay')}) == 0.0",
                f"it spares nothing, since {block}.weightDecay is 0",
                f"give {block}.weightDecay more than 0, or leave withoutDecay out",
            )


def _of_exchanges() -> Iterator[AdmissionWarning]:
    chosen = "spec.exchange.type"
    yield AdmissionWarning(
        "exchange.delayed.updates",
        f"{chosen} == 'Delayed' && {_setting('exchange', EXCHANGES['Delayed'], 'updates')} == 0",
        "0, so Delayed does what AllReduce does",
        "give {spec.epochs == 1 && spec.workload.examples <= spec.batch.initial ? '' : '1 or more, or '}exchange.type "
        "AllReduce",
    )
    outer = "spec.exchange.localSGD.outer"
    yield AdmissionWarning(
        "exchange.localSGD.outer",
        f"{chosen} == 'LocalSGD' && has(spec.exchange.localSGD) && has({outer}) && "
        f"double({outer}.learningRate) == 1.0 && double({outer}.momentum) == 0.0",
        "with learningRate 1 and momentum 0 it applies the mean change as it is",
        "give other numbers, or leave outer out",
    )
    yield AdmissionWarning(
        "exchange.elasticAveraging.elasticity",
        f"{chosen} == 'ElasticAveraging' && "
        f"double({_setting('exchange', EXCHANGES['ElasticAveraging'], 'elasticity')}) == 0.0",
        "0, so the centre keeps the first weights and pulls no replica",
        "give a decimal more than 0",
    )
    yield AdmissionWarning(
        "exchange.topK.density",
        f"{chosen} == 'TopK' && double({_setting('exchange', EXCHANGES['TopK'], 'density')}) == 1.0",
        "1, so every change is sent at once",
        "give a decimal below 1",
    )
    yield AdmissionWarning(
        "exchange.hogwild.threads",
        f"{chosen} == 'Hogwild' && {_setting('exchange', EXCHANGES['Hogwild'], 'threads')} == 1",
        "1 thread shares the weights with no other, as in SingleProcess",
        "give 2 or more, or exchange.type SingleProcess",
    )
    yield AdmissionWarning(
        "exchange.gatherScatter.backups",
        f"{chosen} == 'GatherScatter' && {_setting('exchange', EXCHANGES['GatherScatter'], 'backups')} && "
        "spec.workers.maximum == 1",
        "true, but each stage has 1 worker, which nobody can repeat",
        "give workers.minimum and maximum 2 or more",
    )


def _of_the_rest() -> Iterator[AdmissionWarning]:
    first = "spec.batch.initial / spec.workers.examplesPerWorker"
    yield AdmissionWarning(
        "workers.maximum",
        f"variables.withoutWorkers && spec.workers.maximum > 1 && (spec.workers.minimum > 1 || {first} > 1)",
        "{spec.workers.maximum}, but exchange {spec.exchange.type} trains in one process, without workers",
        "give 1 with minimum 1, or another exchange",
    )
    most = "variables.mostWorkers"
    yield AdmissionWarning(
        "workers.maximum",
        f"!variables.withoutWorkers && {most} < spec.workers.maximum",
        f"{{spec.workers.maximum}}, but no stage requests more than {{{most}}} {{{most} == 1 ? 'worker' : 'workers'}}",
        f"give {{{most}}}, or {{spec.batch.maximum > {most} ? 'fewer examplesPerWorker' : 'larger batches'}}",
    )
    ahead = Workers.model_fields["loaded_ahead"].default
    yield AdmissionWarning(
        "workers.loadedAhead",
        f"spec.workers.loaders == 0 && spec.workers.loadedAhead != {ahead}",
        "{spec.workers.loadedAhead} shards of no loader, since workers.loaders is 0",
        "give workers.loaders 1 or more, or leave it out",
    )
    yield AdmissionWarning(
        "evaluation.everyEpochs",
        "spec.evaluation.everyEpochs > spec.epochs",
        "{spec.evaluation.everyEpochs}, so the model is evaluated only after the last epoch, {spec.epochs}",
        "give at most {spec.epochs}",
    )
    yield AdmissionWarning(
        "evaluation.keepBest",
        "has(spec.evaluation.keepBest) && spec.evaluation.everyEpochs >= spec.epochs",
        "the only evaluation is the last one, so the best weights are the last",
        "give {spec.epochs == 1 ? 'more epochs' : 'everyEpochs below ' + string(spec.epochs)}, or leave keepBest out",
    )
    processor = "spec.workload.device == 'CPU'"
    yield AdmissionWarning(
        "precision",
        f"{processor} && has(spec.precision) && spec.precision == 'TensorFloat32'",
        "TensorFloat32 is Float32 on device CPU",
        "give another device, or leave it out",
    )
    yield AdmissionWarning(
        "deterministic",
        f"{processor} && has(spec.deterministic) && !spec.deterministic",
        "false changes nothing on device CPU, whose kernels are deterministic",
        "give another device, or leave it out",
    )
