"""The exchanges: how gradients or weights move between workers. The trainer has their drivers and strategies."""

from fractions import Fraction
from hashlib import sha256
from math import ceil
from typing import Any, ClassVar, Literal

from pydantic import Field

from batchgrowth.errors import Fault
from batchgrowth.extend import ExchangeEntry
from batchgrowth.registry import Faults, FinishedPlan
from batchgrowth.schema import DecimalText, Model, Rule, decimal_rule

# --- AllReduce: the workers add gradients among themselves, and each takes the step ---

ALL_REDUCE = ExchangeEntry(
    name="AllReduce",
    summary="lets the workers add gradients among themselves, and each worker then takes the same step",
    source="dask-pytorch-ddp's shape, made elastic",
    implementation="batchgrowth_trainer.drivers.generations:train",
    strategy="batchgrowth_trainer.exchange.all_reduce:AllReduce",
)


# --- GatherScatter: one server holds the model, gathers gradients and scatters weights. Sievert and Shah, 2021 ---


class GatherScatterBlock(Model):
    """What the server does about slow workers."""

    backups: bool = Field(
        False,
        description="Whether an idle worker repeats the part of an update that a slow worker still computes; the "
        "first copy counts, and the slow worker is left out until its own copy has ended. The weights do not depend "
        "on it. Default: false.",
    )


def backups_idle(job: FinishedPlan) -> Faults:
    """Return a fault if backups are on and every stage has one worker, so no other can repeat its part."""
    if not job.spec.exchange.settings.backups or job.most_workers > 1:
        return ()
    given = "true, but each stage has 1 worker, which nobody can repeat"
    return (Fault("spec.exchange.gatherScatter.backups", given, "give workers.minimum and maximum 2 or more"),)


GATHER_SCATTER = ExchangeEntry(
    name="GatherScatter",
    summary="has one server, which gathers the workers' gradients, steps, and scatters the weights",
    source="Sievert and Shah, 2021",
    block=GatherScatterBlock,
    implementation="batchgrowth_trainer.drivers.gather_scatter:train",
    lone_exchange=True,
    example={"backups": True},
    idle=backups_idle,
)


# --- SingleProcess: one process does it all, without an exchange; the baseline ---

SINGLE_PROCESS = ExchangeEntry(
    name="SingleProcess",
    summary="trains in one process, without workers",
    implementation="batchgrowth_trainer.drivers.single_process:train",
    uses_workers=False,
)


# --- ParameterServer: each server adds the gradients of its slice of the parameters and steps. Li et al., 2014 ---

MOST_MEMBERS = 64
"""The most members if each is connected with all others."""
_UNDIVIDED = ["Torch", "LBFGS"]
"""Optimizers whose step needs all parameters."""


class ParameterServerBlock(Model):
    """How many slices the parameters are cut into."""

    servers: int | None = Field(
        None,
        ge=1,
        le=MOST_MEMBERS,
        description="Number of servers, which run in the workers; each has a slice of whole parameters. The weights "
        "do not depend on it. Default: one on each worker; 1 with optimizer Torch or LBFGS. Example: 2.",
    )


PARAMETER_SERVER = ExchangeEntry(
    name="ParameterServer",
    summary="gives each server a slice of the parameters: it adds their gradients, steps, and sends the weights",
    source="Dean et al., 2012; Li et al., 2014",
    block=ParameterServerBlock,
    implementation="batchgrowth_trainer.drivers.generations:train",
    all_connected=True,
    strategy="batchgrowth_trainer.exchange.parameter_server:ParameterServer",
    example={"servers": 2},
    outer_rules={
        "JobSpec": (
            Rule(
                "exchange.parameterServer.servers",
                f"give 1 with optimizer {' or '.join(_UNDIVIDED)}, which needs all parameters at once, or leave it out",
                lambda s: (
                    s.exchange.type != "ParameterServer"
                    or s.optimizer.type not in _UNDIVIDED
                    or s.exchange.settings.servers in (None, 1)
                ),
                f"self.exchange.type != 'ParameterServer' || !(self.optimizer.type in {_UNDIVIDED}) || "
                "!has(self.exchange.parameterServer) || !has(self.exchange.parameterServer.servers) || "
                "self.exchange.parameterServer.servers == 1",
            ),
            Rule(
                "workers.maximum",
                f"give at most {MOST_MEMBERS} workers with exchange ParameterServer, where each is connected with all",
                lambda s: s.exchange.type != "ParameterServer" or s.workers.maximum <= MOST_MEMBERS,
                f"self.exchange.type != 'ParameterServer' || self.workers.maximum <= {MOST_MEMBERS}",
            ),
        ),
    },
)


# --- Fields and rules that the exchanges with logical replicas share ---

LONGEST_ROUND = 10_000
"""The most updates between two exchanges."""
DEFAULT_REPLICAS = 4


def replicas_field(most: int) -> Any:
    """Return the field of an exchange's block that holds the number of logical replicas."""
    return Field(
        DEFAULT_REPLICAS,
        ge=2,
        le=most,
        description="Copies of the model that step independently, at most batch.initial; no more workers than this are "
        "used. The weights depend on this number and not on the number of workers. Default: 4.",
    )


def every_updates_field(default: int, what: str) -> Any:
    """Return the field of an exchange's block that holds the number of updates between two exchanges."""
    return Field(
        default,
        ge=1,
        le=LONGEST_ROUND,
        description=f"Updates from one {what} to the next; the end of an epoch adds one. Default: {default}.",
    )


def replica_rules(name: str, block: str) -> dict[str, tuple[Rule, ...]]:
    """Return the rules that relate the replicas of exchange `name`, given in its block `block`, to other fields."""
    # Only Python fills in a block that is left out, so CEL has to know its default.
    replicas = f"(has(self.exchange.{block}) ? self.exchange.{block}.replicas : {DEFAULT_REPLICAS})"
    return {
        "JobSpec": (
            Rule(
                "workers.maximum",
                f"give at most exchange.{block}.replicas workers: a replica cannot be divided",
                lambda s: s.exchange.type != name or s.workers.maximum <= s.exchange.replicas,
                f"self.exchange.type != '{name}' || self.workers.maximum <= {replicas}",
            ),
            Rule(
                f"exchange.{block}.replicas",
                "give at most batch.initial replicas: each takes a part of every batch",
                lambda s: s.exchange.type != name or s.exchange.replicas <= s.batch.initial,
                f"self.exchange.type != '{name}' || {replicas} <= self.batch.initial",
            ),
            Rule(
                f"exchange.{block}.replicas",
                "give at most workload.examples replicas: each takes a part of every batch",
                lambda s: s.exchange.type != name or s.exchange.replicas <= s.workload.examples,
                f"self.exchange.type != '{name}' || {replicas} <= self.workload.examples",
            ),
        ),
    }


# --- Delayed: gradients are added while others are computed, and applied some updates later. Langford et al., 2009 ---

MOST_UPDATES = 8


class DelayedBlock(Model):
    """How much later a gradient is used."""

    updates: int = Field(
        1,
        ge=0,
        le=MOST_UPDATES,
        description="How many updates late a gradient is applied: update k uses the gradient that was computed with "
        "the weights before update k - updates. The weights depend on this number and not on the workers; 0 hides no "
        "communication and ends with the weights of AllReduce. Default: 1.",
    )


def delay_idle(job: FinishedPlan) -> Faults:
    """Return a fault if no gradient is late, or if the first is due only after the last update."""
    path = "spec.exchange.delayed.updates"
    updates = job.spec.exchange.settings.updates
    if updates == 0:
        remedy = "give exchange.type AllReduce"
        if job.plan.updates > 1:
            remedy = "give 1 or more, or exchange.type AllReduce"
        return (Fault(path, "0, so Delayed does what AllReduce does", remedy),)
    if updates >= job.plan.updates:
        given = f"{updates:,}, so the first gradient is due after the {job.plan.updates:,} updates of the plan"
        return (Fault(path, given, "give fewer, or more epochs"),)
    return ()


DELAYED = ExchangeEntry(
    name="Delayed",
    summary="adds gradients while the workers compute the next ones, and applies them some updates later",
    source="Langford, Smola and Zinkevich, 2009",
    block=DelayedBlock,
    implementation="batchgrowth_trainer.drivers.generations:train",
    promise="Repeatable",
    strategy="batchgrowth_trainer.exchange.delayed:Delayed",
    computes_ahead=True,
    waiting=lambda settings: settings.updates,
    example={"updates": 2},
    idle=delay_idle,
)


# --- LocalSGD: logical replicas step by themselves and average now and then. Zinkevich et al., 2010; Stich, 2019 ---


class Outer(Model):
    """An optimizer whose gradient is the mean change of a round, as in DiLoCo of Douillard et al., 2023."""

    learning_rate: DecimalText = Field(
        "1", description='Factor of the mean change: a decimal in quotes. Default: "1". Example: "0.7".'
    )
    momentum: DecimalText = Field(
        "0", description='Momentum of the mean changes: a decimal in quotes, below 1. Default: "0". Example: "0.9".'
    )
    nesterov: bool = Field(False, description="Nesterov's form of momentum; needs momentum. Default: false.")

    rules: ClassVar = (
        decimal_rule("learningRate", above=0, most=10, example="0.7"),
        decimal_rule("momentum", below=1),
        Rule(
            "nesterov",
            "give a momentum more than 0 with it, or leave it out",
            lambda o: not o.nesterov or Fraction(o.momentum) > 0,
            "!self.nesterov || double(self.momentum) > 0.0",
        ),
    )


class LocalSGDBlock(Model):
    """Logical replicas, spread over the workers there are; each takes its part of every batch."""

    replicas: int = replicas_field(1000)
    every_updates: int = every_updates_field(8, "average")
    after_updates: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Updates before the first local one, in which gradients are added as by AllReduce (post-local SGD "
        "of Lin et al., 2020). Default: 0.",
    )
    outer: Outer | None = Field(
        None,
        description="How the mean change of the weights is applied. Default: as it is. "
        'Example: {learningRate: "0.7", momentum: "0.9", nesterov: true}.',
    )


def local_sgd_idle(job: FinishedPlan) -> Faults:
    """Return the settings of LocalSGD that change nothing in the job."""
    block = job.spec.exchange.settings
    faults = []
    if block.after_updates >= job.plan.updates:
        given = (
            f"{block.after_updates:,}, so no replica steps by itself in the {job.plan.updates:,} updates of the plan"
        )
        faults.append(Fault("spec.exchange.localSGD.afterUpdates", given, "give fewer"))
    outer = block.outer
    if outer is not None and Fraction(outer.learning_rate) == 1 and Fraction(outer.momentum) == 0:
        given = "with learningRate 1 and momentum 0 it applies the mean change as it is"
        faults.append(Fault("spec.exchange.localSGD.outer", given, "give other numbers, or leave outer out"))
    return tuple(faults)


LOCAL_SGD = ExchangeEntry(
    name="LocalSGD",
    summary="lets a fixed number of logical replicas step by themselves, and averages them now and then",
    source="Stich, 2019; Lin et al., 2020; Douillard et al., 2023",
    block=LocalSGDBlock,
    implementation="batchgrowth_trainer.drivers.generations:train",
    promise="Repeatable",
    replicas=lambda settings: settings.replicas,
    longest_round=lambda settings: settings.every_updates,
    before_rounds=lambda settings: settings.after_updates,
    strategy="batchgrowth_trainer.exchange.local_sgd:LocalSGD",
    example={"replicas": 4, "everyUpdates": 4},
    idle=local_sgd_idle,
    outer_rules=replica_rules("LocalSGD", "localSGD"),
)


# --- ElasticAveraging: a spring pulls each replica to a centre, and the centre to the replicas. Zhang et al., 2015 ---


class ElasticAveragingBlock(Model):
    """Logical replicas, spread over the workers there are; the centre is evaluated and exported."""

    replicas: int = replicas_field(64)
    every_updates: int = every_updates_field(4, "pull")
    elasticity: DecimalText = Field(
        "0.9",
        description="The part of the way to the mean of the replicas that the centre moves at each pull; a replica "
        "moves a part elasticity / replicas of its way to the centre. A decimal in quotes, at most 1. "
        'Default: "0.9".',
    )

    rules: ClassVar = (decimal_rule("elasticity", most=1),)


def spring_idle(job: FinishedPlan) -> Faults:
    """Return a fault if the elasticity is 0, so replicas and centre never pull each other."""
    if Fraction(job.spec.exchange.settings.elasticity) > 0:
        return ()
    given = "0, so the centre keeps the first weights and pulls no replica"
    return (Fault("spec.exchange.elasticAveraging.elasticity", given, "give a decimal more than 0"),)


ELASTIC_AVERAGING = ExchangeEntry(
    name="ElasticAveraging",
    summary="pulls a fixed number of logical replicas towards a centre, and the centre towards them",
    source="Zhang, Choromanska and LeCun, 2015",
    block=ElasticAveragingBlock,
    implementation="batchgrowth_trainer.drivers.generations:train",
    promise="Repeatable",
    replicas=lambda settings: settings.replicas,
    keeps="Weights",
    all_connected=True,
    longest_round=lambda settings: settings.every_updates,
    strategy="batchgrowth_trainer.exchange.elastic_averaging:ElasticAveraging",
    example={"replicas": 4, "everyUpdates": 2},
    idle=spring_idle,
    outer_rules=replica_rules("ElasticAveraging", "elasticAveraging"),
)


# --- Gossip: each replica averages with its neighbours in a graph. Lian et al., 2017; Assran et al., 2019 ---


class GossipBlock(Model):
    """Logical replicas, spread over the workers there are; their mean is evaluated and exported."""

    replicas: int = replicas_field(64)
    every_updates: int = every_updates_field(1, "exchange")
    graph: Literal["Exponential", "Ring", "Hypercube", "Random", "Complete"] = Field(
        "Exponential",
        description="Which replicas average: Exponential, in turn with those 1, 2, 4, … places before; Ring, with both "
        "neighbours; Hypercube, in turn along each dimension; Random, in pairs drawn from the seed; Complete, "
        "all with all. Default: Exponential.",
    )

    rules: ClassVar = (
        Rule(
            "replicas",
            "give a power of two with graph Hypercube",
            lambda g: g.graph != "Hypercube" or g.replicas & (g.replicas - 1) == 0,
            "self.graph != 'Hypercube' || self.replicas in [2, 4, 8, 16, 32, 64]",
        ),
    )


def circles(graph: str, replicas: int, turn: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return each replica's circle in exchange number `turn`, counted from 0: the replicas that it averages with.

    A circle is a replica and its neighbours. Each replica is in as many circles as its own has members, so the mean of
    all replicas stays as it is.
    """
    everyone = range(replicas)
    distance = 1 << turn % (replicas - 1).bit_length()  # in turn each power of two below the number of replicas
    match graph:
        case "Exponential":
            neighbours = [{(one - distance) % replicas} for one in everyone]
        case "Ring":
            neighbours = [{(one - 1) % replicas, (one + 1) % replicas} for one in everyone]
        case "Hypercube":
            neighbours = [{one ^ distance} for one in everyone]
        case "Random":
            # A hash is the same on every member. The draws of `random` may change with the version of Python.
            order = sorted(everyone, key=lambda one: sha256(f"gossip {seed} {turn} {one}".encode()).digest())
            neighbours = [set() for _ in everyone]
            for left, right in zip(order[::2], order[1::2], strict=False):  # the last of an odd number has none
                neighbours[left] = {right}
                neighbours[right] = {left}
        case _:
            neighbours = [set(everyone) for _ in everyone]
    return tuple(tuple(sorted(others | {one})) for one, others in enumerate(neighbours))


GOSSIP = ExchangeEntry(
    name="Gossip",
    summary="averages each of a fixed number of logical replicas with its neighbours in a graph",
    source="Lian et al., 2017; Assran et al., 2019",
    block=GossipBlock,
    implementation="batchgrowth_trainer.drivers.generations:train",
    promise="Repeatable",
    replicas=lambda settings: settings.replicas,
    keeps="Weights",
    all_connected=True,
    longest_round=lambda settings: settings.every_updates,
    strategy="batchgrowth_trainer.exchange.gossip:Gossip",
    example={"replicas": 4, "graph": "Ring"},
    outer_rules=replica_rules("Gossip", "gossip"),
)


# --- TopK: each replica sends its largest changes, and the others later. Basu et al., 2019; Lin et al., 2018 ---


class TopKBlock(Model):
    """Logical replicas, spread over the workers there are; all have the same weights after each exchange."""

    replicas: int = replicas_field(64)
    every_updates: int = every_updates_field(1, "exchange")
    density: DecimalText = Field(
        "0.01",
        description="The share of its weight changes that a replica sends in an exchange, the largest; it adds the "
        "others to its next changes. A decimal in quotes, more than 0 and at most 1; at least one change is sent. "
        'Default: "0.01".',
    )

    rules: ClassVar = (decimal_rule("density", above=0, most=1, example="0.01"),)

    def count(self, parameters: int) -> int:
        """Return the number of changes that a replica sends in an exchange if its model has `parameters` parameters."""
        return max(1, ceil(Fraction(self.density) * parameters))


def density_idle(job: FinishedPlan) -> Faults:
    """Return a fault if the density is 1, so every change is sent at once and none later."""
    if Fraction(job.spec.exchange.settings.density) < 1:
        return ()
    return (Fault("spec.exchange.topK.density", "1, so every change is sent at once", "give a decimal below 1"),)


TOP_K = ExchangeEntry(
    name="TopK",
    summary="lets a fixed number of logical replicas send only their largest changes, and the others later",
    source="Basu et al., 2019; Lin et al., 2018",
    block=TopKBlock,
    implementation="batchgrowth_trainer.drivers.generations:train",
    promise="Repeatable",
    replicas=lambda settings: settings.replicas,
    keeps="Residual",
    all_connected=True,
    longest_round=lambda settings: settings.every_updates,
    strategy="batchgrowth_trainer.exchange.top_k:TopK",
    example={"replicas": 4, "density": "0.05"},
    idle=density_idle,
    outer_rules=replica_rules("TopK", "topK"),
)


# --- Downpour: workers push gradients to a server and fetch weights, each at its own pace. Dean et al., 2012 ---

DEFAULT_STALENESS = 16


class DownpourBlock(Model):
    """How far behind the weights a gradient may be."""

    maximum_staleness: int = Field(
        DEFAULT_STALENESS,
        ge=0,
        le=1000,
        description="Most updates that the server makes between the fetch of weights and the push of the gradient; a "
        "worker waits if its update could exceed this. With 0, one worker computes at a time. Unit: updates. Default: "
        "16.",
    )


DOWNPOUR = ExchangeEntry(
    name="Downpour",
    summary="lets each worker fetch weights from a server and push gradients at its own pace, so weights differ from "
    "run to run",
    source="Dean et al., 2012",
    block=DownpourBlock,
    implementation="batchgrowth_trainer.drivers.generations:train",
    promise="Nondeterministic",
    all_connected=True,
    longest_round=lambda _: 2,
    strategy="batchgrowth_trainer.exchange.downpour:Downpour",
    computes_ahead=True,
    example={"maximumStaleness": 8},
    outer_rules={
        "JobSpec": (
            Rule(
                "compile",
                "leave it out with exchange Downpour: the worker beside the server computes with a second model",
                lambda s: s.exchange.type != "Downpour" or not s.compile,
                "self.exchange.type != 'Downpour' || !has(self.compile) || !self.compile",
            ),
            Rule(
                "workers.maximum",
                "give at most exchange.downpour.maximumStaleness + 1 workers: more cannot compute at once",
                lambda s: (
                    s.exchange.type != "Downpour" or s.workers.maximum <= s.exchange.settings.maximum_staleness + 1
                ),
                "self.exchange.type != 'Downpour' || self.workers.maximum <= (has(self.exchange.downpour) ? "
                f"self.exchange.downpour.maximumStaleness : {DEFAULT_STALENESS}) + 1",
            ),
        ),
    },
)


# --- Hogwild: threads of one process update the same weights without locks. Recht, Ré, Wright and Niu, 2011 ---


class HogwildBlock(Model):
    """The threads that share the weights."""

    threads: int = Field(
        4,
        ge=1,
        le=256,
        description="Threads of the trainer that each compute whole updates; the trainer needs as many processors, "
        "times workers.threads. With 1 the weights are those of SingleProcess; with more they differ from run to run. "
        "Default: 4.",
    )


def threads_idle(job: FinishedPlan) -> Faults:
    """Return a fault if there is one thread, which shares the weights with no other."""
    if job.spec.exchange.settings.threads > 1:
        return ()
    given = "1 thread shares the weights with no other, as in SingleProcess"
    return (Fault("spec.exchange.hogwild.threads", given, "give 2 or more, or exchange.type SingleProcess"),)


HOGWILD = ExchangeEntry(
    name="Hogwild",
    summary="lets threads of one process update the same weights without locks, so weights differ from run to run",
    source="Recht, Ré, Wright and Niu, 2011",
    block=HogwildBlock,
    implementation="batchgrowth_trainer.drivers.hogwild:train",
    uses_workers=False,
    promise="Nondeterministic",
    example={"threads": 2},
    idle=threads_idle,
    outer_rules={
        "JobSpec": (
            Rule(
                "compile",
                "leave it out with exchange Hogwild: torch compiles for one thread at a time",
                lambda s: s.exchange.type != "Hogwild" or not s.compile,
                "self.exchange.type != 'Hogwild' || !has(self.compile) || !self.compile",
            ),
            Rule(
                "workers.loaders",
                "give 0 with exchange Hogwild: its threads read by themselves",
                lambda s: s.exchange.type != "Hogwild" or s.workers.loaders == 0,
                "self.exchange.type != 'Hogwild' || self.workers.loaders == 0",
            ),
        ),
    },
)
