"""The parts of the spec that say what is trained: workload, batch, learning rate, optimizer, evaluation."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from batchgrowth.choices import GROWTH, LEARNING_RATES, OPTIMIZERS, SCHEDULES
from batchgrowth.looks import LARGEST_BATCH, Looks
from batchgrowth.registry import Choice, choice_of
from batchgrowth.schema import (
    CONFIG_KEY,
    ENTRYPOINT,
    FILE_PATH,
    PARAMETER_NAMES,
    SHA256,
    DecimalText,
    Model,
    ObjectName,
    Rule,
    decimal_rule,
    module_rule,
)
from batchgrowth.spec.pods import map_list, once

_MEASURED = [name for name, entry in GROWTH.items() if entry.quantity]


@choice_of(GROWTH)
class Growth(Choice):
    """The rule of growth: its `type`, the block of that name, and `looks` for rules that measure."""

    type: str
    looks: Looks | None = Field(
        None,
        description="When a measured rule looks at the training, and how far it may move the batch: only with one of "
        f"{', '.join(_MEASURED)}. Default: a look at the end of each epoch.",
    )

    rules: ClassVar = (
        Rule(
            "looks",
            "give the block looks only with a type that measures",
            lambda g: g.looks is None or g.type in _MEASURED,
            f"!has(self.looks) || self.type in {_MEASURED}",
        ),
    )


class Batch(Model):
    """How many examples one update uses, from the first to the last."""

    initial: int = Field(
        ge=1,
        le=LARGEST_BATCH,
        description="The batch size of the first update. At most batch.maximum. Unit: examples. Required. Example: 32.",
    )
    maximum: int = Field(
        ge=1,
        le=LARGEST_BATCH,
        description="The largest batch size used; when the growth wants more, the learning rate falls instead, as "
        "learningRate.rule says. Unit: examples. Required. Example: 512.",
    )
    shard: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="Examples per gradient shard: the unit of work of a worker, and of reproducibility. Smaller "
        "shards make updates slower, and let more workers compute only when a batch has fewer shards than workers. "
        "Unit: examples. Default: workers.examplesPerWorker.",
    )
    growth: Growth = Field(Growth(), description="How the batch grows. Default: Constant, no growth.")

    rules: ClassVar = (
        Rule(
            "initial",
            "give a number no larger than batch.maximum",
            lambda b: b.initial <= b.maximum,
            "self.initial <= self.maximum",
        ),
        *GROWTH.outer_rules("Batch"),
    )


class WatchedMetric(Model):
    """A metric of the evaluations, and whether larger or smaller values are better."""

    metric: str = Field(
        min_length=1,
        max_length=253,
        description="Name as in evaluations.csv: loss, or a metric of the workload; for a further test set NAME.loss "
        "or NAME.METRIC. Required. Example: accuracy.",
    )
    mode: Literal["Minimize", "Maximize"] = Field(description="Whether less or more is better. Required.")

    @property
    def least(self) -> float:
        """Return the change above which a value counts as better."""
        return 0.0


class KeepBest(WatchedMetric):
    """Which evaluation's weights are kept in addition to the final weights."""


class StopEarly(WatchedMetric):
    """When training ends before its last epoch."""

    patience: int = Field(
        ge=1,
        le=1_000_000,
        description="Evaluations in a row without a better value, after which the job ends. Required. Example: 5.",
    )
    minimum_change: DecimalText = Field(
        "0", description="A value counts as better if it improves on the best so far by more than this. Default: 0."
    )

    @property
    def least(self) -> float:
        """Return minimumChange."""
        return float(self.minimum_change)


class Evaluation(Model):
    """How often the model is evaluated on held-out data, and what the evaluations decide."""

    every_epochs: int = Field(1, ge=1, le=1_000_000, description="Epochs from one evaluation to the next. Default: 1.")
    keep_best: KeepBest | None = Field(
        None,
        description="Keeps the weights of the best evaluation too, in best.safetensors. Default: only the last. "
        "Example: {metric: accuracy, mode: Maximize}.",
    )
    stop_early: StopEarly | None = Field(
        None,
        description="Ends the job as Succeeded when a metric gets no better. It belongs to the mathematics, and so "
        "does everyEpochs then. Default: never. Example: {metric: loss, mode: Minimize, patience: 5}.",
    )


class InitialWeights(Model):
    """The weights with which the training starts, in place of those that the workload's model has."""

    path: str = Field(
        min_length=1,
        max_length=1024,
        description="A file of safetensors or of torch, or the folder of a run; trainer and workers read it. Required. "
        "Example: runs/pretrained.",
    )
    match: Literal["Strict", "ByName"] = Field(
        "Strict",
        description="Strict: the file has the tensors of the model and no others. ByName: the tensors of the same name "
        "and shape are taken, and the rest of the model stays as it was made. Default: Strict.",
    )
    sha256: str | None = Field(
        None,
        pattern=SHA256,
        min_length=64,
        max_length=64,
        description="SHA-256 of the weights; others are refused. `batchgrowth run` fills it in. Default: not checked.",
    )


NamePattern = Annotated[str, StringConstraints(pattern=PARAMETER_NAMES, min_length=1, max_length=253)]
"""A shell pattern of parameter names of a torch module."""


class Warmup(Model):
    """A ramp of the learning rate over the first updates: Goyal et al., 2017, section 2.2."""

    updates: int = Field(
        ge=1, le=1_000_000_000, description="Length of the warm-up. Unit: updates. Required. Example: 500."
    )
    initial: DecimalText = Field(
        "0",
        description="The learning rate at the foot of the ramp; the first update is one step above it. At most "
        'learningRate.initial. A decimal in quotes. Default: "0".',
    )


@choice_of(SCHEDULES)
class Schedule(Choice):
    """How the learning rate falls by epoch: `type`, and the block of that name."""

    type: str


@choice_of(LEARNING_RATES, "rule")
class LearningRate(Choice):
    """The learning rate of each update."""

    initial: DecimalText = Field(
        description="The learning rate at batch.initial: a decimal in quotes, more than 0 and at most 1000. "
        'Required. Example: "0.05".'
    )
    rule: str
    schedule: Schedule | None = Field(
        None,
        description="How the learning rate falls by epoch: a factor, constant during each epoch, multiplies the "
        "rule's learning rate. Default: Constant.",
    )
    warmup: Warmup | None = Field(None, description="A ramp over the first updates. Default: none.")

    rules: ClassVar = (
        decimal_rule("initial", above=0, most=1000, example="0.05"),
        Rule(
            "warmup.initial",
            "give a decimal no larger than learningRate.initial",
            lambda r: r.warmup is None or float(r.warmup.initial) <= float(r.initial),
            "!has(self.warmup) || double(self.warmup.initial) <= double(self.initial)",
        ),
    )


class Clipping(Model):
    """A bound on the gradient of each update, the mean over its batch: Pascanu et al., 2013."""

    norm: DecimalText | None = Field(
        None,
        description="The largest Euclidean norm of the whole gradient, which is scaled down to it. A decimal in "
        'quotes, more than 0. Either norm or value. Example: "1".',
    )
    value: DecimalText | None = Field(
        None,
        description="The largest absolute value of each element of the gradient. A decimal in quotes, more than 0. "
        'Either norm or value. Example: "0.5".',
    )

    rules: ClassVar = (
        Rule(
            "norm",
            "give either norm or value",
            lambda c: (c.norm is None) != (c.value is None),
            "has(self.norm) != has(self.value)",
        ),
        decimal_rule("norm", above=0, example="1", optional=True),
        decimal_rule("value", above=0, example="0.5", optional=True),
    )


class Averaging(Model):
    """An exponential moving average of the weights: Polyak and Juditsky, 1992."""

    decay: DecimalText = Field(
        description="Share of the old average that each update keeps: a decimal in quotes, more than 0 and below 1. "
        'Required. Example: "0.999".'
    )

    rules: ClassVar = (decimal_rule("decay", above=0, below=1, example="0.999"),)


class WithoutDecay(Model):
    """The parameters that the weight decay leaves alone."""

    below_dimensions: int = Field(
        0,
        ge=0,
        le=8,
        description="Parameters of fewer dimensions are not decayed: 2 spares biases and the scales of norms. "
        "Default: 0, all are decayed.",
    )
    names: tuple[NamePattern, ...] = Field(
        (),
        strict=False,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="Patterns of the names of parameters that are not decayed, at most 64; * stands for any "
        'characters. Default: none. Example: ["*.bias", "embedding.*"].',
    )


@choice_of(OPTIMIZERS)
class Optimizer(Choice):
    """The method that turns a gradient into new weights: `type`, and the block of that name."""

    type: str
    clipping: Clipping | None = Field(None, description="A bound on the gradient of each update. Default: none.")
    without_decay: WithoutDecay | None = Field(
        None, description="Parameters that the weight decay leaves alone. Default: none."
    )
    averaging: Averaging | None = Field(
        None, description="An average of the weights over the updates, to evaluate and export. Default: none."
    )


ARGUMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

MOST_FILES = 256

ArgumentText = Annotated[str, StringConstraints(max_length=1024)]


class SourceItem(Model):
    """A key of the ConfigMap, and the path of its file."""

    key: str = Field(pattern=CONFIG_KEY, min_length=1, max_length=253, description="A key of the ConfigMap. Required.")
    path: str = Field(
        pattern=FILE_PATH,
        min_length=1,
        max_length=255,
        description="The path of its file below the folder of the code. Required. Example: package/module.py.",
    )


class Source(Model):
    """A ConfigMap of the job's namespace with the modules of the workload."""

    config_map: ObjectName = Field(
        description="Name of the ConfigMap; make it immutable. Required. Example: digits-code."
    )
    items: tuple[SourceItem, ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        max_length=MOST_FILES,
        json_schema_extra=map_list("path"),
        description="The keys that become files, each with its path, so that modules can lie in packages; at most "
        "256. Default: each key becomes a file of its name.",
    )

    rules: ClassVar = (
        Rule("items", "give each path once", once("items", "path"), None),  # the list type of the field says so
    )


class Workload(Model):
    """The user's code, its arguments, and the number of training examples."""

    entrypoint: str = Field(
        pattern=ENTRYPOINT,
        min_length=3,
        max_length=253,
        description="The function that returns the model, the loss, the data and the metrics, written "
        "package.module:function. It is called with the arguments below. Required. "
        "Example: batchgrowth_trainer.workloads.digits:workload.",
    )
    arguments: dict[str, ArgumentText] = Field(
        default_factory=dict,
        max_length=64,
        description="Keyword arguments of the entrypoint, at most 64; every value is a string, which the "
        'entrypoint converts. Default: none. Example: {hidden: "64"}.',
    )
    examples: int = Field(
        ge=1,
        le=2_147_483_647,
        description="How many training examples the data holds. The plan is made from this number without loading "
        "the data, and the trainer refuses data of another length. Required. Example: 50000.",
    )
    device: Literal["Auto", "CPU", "CUDA"] = Field(
        "Auto",
        description="Device of the workers: Auto uses CUDA if a worker has it and the CPU otherwise. Weights are "
        "identical only among workers of one kind. Default: Auto.",
    )

    source: Source | None = Field(
        None,
        description="Where the code comes from on Kubernetes; its folder precedes sys.path in trainer and workers. "
        "It cannot change once the job has started. Ignored on a single machine, where modules lie beside the "
        "manifest. Default: none, the image has the code.",
    )

    rules: ClassVar = (
        module_rule("entrypoint"),
        Rule(
            "arguments",
            "give argument names of at most 63 characters",
            lambda w: all(len(name) <= 63 for name in w.arguments),
            "self.arguments.all(name, size(name) <= 63)",
        ),
        Rule(
            "arguments",
            "give argument names that are Python names: letters, digits and underscores, no digit first",
            lambda w: all(ARGUMENT_NAME.fullmatch(name) for name in w.arguments),
            None,  # CEL estimates too high a cost for a regular expression over keys of unknown length
        ),
    )
