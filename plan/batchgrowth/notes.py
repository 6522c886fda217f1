"""What a job's manifest asks for and its finished plan cannot give, such as workers that never hold a shard, and what
else a reader should know.

`remarks` asks each choice (`Entry.idle`) and then each rule below; a rule yields the faults that it finds. `check`,
`plan`, `run` and the job's status show them; nothing here refuses a job.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil

from batchgrowth.errors import Fault, counted
from batchgrowth.growth_decisions import Course
from batchgrowth.looks import LARGEST_BATCH
from batchgrowth.plan import BatchDecision, Plan, Stage
from batchgrowth.registry import Faults, FinishedPlan
from batchgrowth.shards import shard_count
from batchgrowth.spec import JobSpec

MOST_WASTE = Fraction(1, 10)
"""The share of the workers' time in a stage above which waiting for the busiest of them gets a note."""
SHORTEST_WARMUP = 2
"""The fewest updates of a warm-up that changes a learning rate."""
_NO_ROOM = "give more epochs, or leave the warm-up out"
MOST_EACH = 9
"""One more than the most shards per worker that `_better_shard` tries."""


def remarks(spec: JobSpec, plan: Plan) -> Faults:
    """Return a fault for each setting that can never act in the plan, or that wastes workers; choices come first."""
    job = finished(spec, plan)
    chosen = (spec.batch.growth, spec.learning_rate, spec.learning_rate.schedule, spec.optimizer, spec.exchange)
    faults: list[Fault] = []
    for choice in chosen:
        if choice is not None:
            faults += choice.entry.idle(job)
    for rule in RULES:
        faults += rule(job)
    return tuple(faults)


def notes(spec: JobSpec, plan: Plan) -> tuple[str, ...]:
    """Return a line for each remark, and for what else a reader of the plan should know."""
    return (*(f"note: {remark}" for remark in remarks(spec, plan)), *asides(spec, plan))


def asides(spec: JobSpec, plan: Plan) -> tuple[str, ...]:
    """Return a line for each thing that a reader of the plan should know although nothing is wrong with it."""
    told = (shard_note(plan, spec), gain_note(spec), clock_note(spec), exchange_note(spec))
    return tuple(filter(None, told))


def finished(spec: JobSpec, plan: Plan) -> FinishedPlan:
    """Return the job with its plan, and with the plan whose batch grows as fast as its looks allow."""
    course = Course(spec, plan=plan)
    undecided = FinishedPlan(spec, plan, plan)
    # The noise shows between shards, so a first batch of one shard would stay as it is for ever.
    sees = not spec.batch.growth.entry.needs_noise or undecided.shards_of(spec.batch.initial) > 1
    if course.is_measured and sees:
        update = course.next_look(0)
        while update < course.plan.updates:
            wanted = course.plan.stages[-1].wanted
            # Growth past twice the maximum would only make the plan longer: no rule below learns more from it.
            largest = min(course.bounded(LARGEST_BATCH, wanted), max(wanted, 2 * spec.batch.maximum))
            if largest == wanted:
                break
            course = course.joined_by(BatchDecision(update, largest, 1.0))
            update = course.next_look(update)
    return FinishedPlan(spec, plan, course.plan)


# --- What a plan cannot reach ---


def maximum_unreached(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault if no stage has batch.maximum."""
    batch = job.spec.batch
    if job.largest_batch < batch.maximum:
        given = f"{batch.maximum:,} is not reached: the largest batch is {job.largest_batch:,}"
        remedy = _with_two_shards(job, f"give {job.largest_batch:,}", "maximum", job.largest_batch)
        yield Fault("spec.batch.maximum", given, f"{remedy}, or a growth that reaches more")


def workers_unreached(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault if no stage requests workers.maximum workers."""
    workers = job.spec.workers
    if job.spec.exchange.entry.uses_workers and job.most_workers < workers.maximum:
        given = f"{workers.maximum:,}, but no stage requests more than {counted(job.most_workers, 'worker')}"
        remedy = f"give {job.most_workers:,}, or larger batches"
        if job.largest_batch > job.most_workers:
            remedy = f"give {job.most_workers:,}, or fewer examplesPerWorker"
        yield Fault("spec.workers.maximum", given, remedy)


def warmup_idle(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault if the warm-up changes no learning rate, or if it takes most of the training."""
    rate = job.spec.learning_rate
    warmup = rate.warmup
    if warmup is None:
        return
    path = "spec.learningRate.warmup"
    fewest = job.grown.updates
    if warmup.updates == 1:
        remedy = "give 2 or more"
        if fewest < 2 * SHORTEST_WARMUP:
            remedy = _NO_ROOM
        yield Fault(f"{path}.updates", "1, so the first update has the whole learning rate", remedy)
    elif Fraction(warmup.initial) == Fraction(rate.initial):
        yield Fault(f"{path}.initial", f"{warmup.initial} is learningRate.initial, so nothing rises", "give less")
    elif 2 * warmup.updates > fewest:
        plan = f"the {fewest:,} updates of the plan"
        if job.grown is not job.plan:
            plan = f"the {fewest:,} updates that remain if the batch grows as fast as it may"
        remedy = f"give at most {fewest // 2:,}"
        if fewest < 2 * SHORTEST_WARMUP:
            remedy = _NO_ROOM
        given = f"{warmup.updates:,} is more than half of {plan}, so most of them have a smaller learning rate"
        yield Fault(f"{path}.updates", given, remedy)


def evaluation_idle(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault if everyEpochs exceeds the epochs, and one if keepBest can only choose the last evaluation."""
    evaluation = job.spec.evaluation
    epochs = job.spec.epochs
    if evaluation.every_epochs > epochs:
        given = f"{evaluation.every_epochs:,}, so the model is evaluated only after the last epoch, {epochs:,}"
        yield Fault("spec.evaluation.everyEpochs", given, f"give at most {epochs:,}")
    if evaluation.keep_best is not None and evaluation.every_epochs >= epochs:
        given = "the only evaluation is the last one, so the best weights are the last"
        remedy = f"give everyEpochs below {epochs:,}"
        if epochs == 1:
            remedy = "give more epochs"
        yield Fault("spec.evaluation.keepBest", given, f"{remedy}, or leave keepBest out")


def device_idle(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault for each setting that acts only on a GPU, if the job's device is CPU."""
    spec = job.spec
    if spec.workload.device != "CPU":
        return
    if spec.precision == "TensorFloat32":
        yield Fault("spec.precision", "TensorFloat32 is Float32 on device CPU", "give another device, or leave it out")
    if spec.deterministic is False:
        given = "false changes nothing on device CPU, whose kernels are deterministic"
        yield Fault("spec.deterministic", given, "give another device, or leave it out")


def loaders_idle(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault if loadedAhead is not its default although there are no loaders."""
    workers = job.spec.workers
    if workers.loaders == 0 and workers.loaded_ahead != type(workers).model_fields["loaded_ahead"].default:
        given = f"{workers.loaded_ahead} shards of no loader, since workers.loaders is 0"
        yield Fault("spec.workers.loadedAhead", given, "give workers.loaders 1 or more, or leave it out")


# --- Batches, shards and workers that do not fit each other ---


def batch_past_data(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault if a batch is larger than the training data, so that its update takes fewer examples."""
    examples = job.plan.examples_per_epoch
    batch = job.spec.batch
    if job.largest_batch <= examples:
        return
    field = "maximum"
    remedy = f"give at most {examples:,}"
    if batch.initial > examples:
        field = "initial"
        remedy += ", and maximum too"
    given = (
        f"{getattr(batch, field):,} is more than the {counted(examples, 'example')} of the data, so an epoch has 1 "
        "update, which takes them all"
    )
    yield Fault(f"spec.batch.{field}", given, _with_two_shards(job, remedy, field, examples))


def _with_two_shards(job: FinishedPlan, remedy: str, field: str, batch: int) -> str:
    """Return the remedy, which sets `field` of spec.batch to `batch`, and what else helps if one shard is refused."""
    spec = job.spec
    of_growth = field == "initial" and spec.batch.growth.entry.needs_noise
    if job.plan.shard < batch or not (of_growth or spec.learning_rate.entry.gain):
        return remedy
    if batch == 1:
        return f"{remedy}, with a growth and a rule that compare no shards"
    return f"{remedy}, with a batch.shard below {batch:,}"


def workers_without_shard(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault if stages request workers that never hold a shard."""
    workers = job.spec.workers
    exchange = job.spec.exchange
    if not exchange.entry.uses_workers:
        if job.most_workers > 1:
            given = f"{workers.maximum:,}, but exchange {exchange.type} trains in one process, without workers"
            yield Fault("spec.workers.maximum", given, "give 1 with minimum 1, or another exchange")
        return
    idle = [stage for stage in job.grown.stages if stage.workers > job.shards_of(stage.batch_size)]
    if not idle:
        return
    worst = max(idle, key=lambda stage: stage.workers - job.shards_of(stage.batch_size))
    shards = job.shards_of(worst.batch_size)
    used = min(worst.batch_size, job.plan.examples_per_epoch)
    given = (
        f"requests {counted(worst.workers, 'worker')} {_where(worst, idle)}, whose {counted(used, 'example')} are "
        f"{counted(shards, 'shard')} of at most {job.plan.shard:,}, so {worst.workers - shards:,} never compute"
    )
    enough = min(job.shards_of(stage.batch_size) for stage in idle)
    if all(stage.batch_size // workers.examples_per_worker <= job.shards_of(stage.batch_size) for stage in idle):
        yield Fault("spec.workers.minimum", f"{workers.minimum:,} {given}", f"give {enough:,}")
    elif (
        workers.examples_per_worker < job.plan.shard
        and workers.minimum <= enough
        and all(stage.batch_size <= job.plan.examples_per_epoch for stage in idle)
    ):
        remedy = f"give {job.plan.shard:,}, the size of a shard"
        yield Fault("spec.workers.examplesPerWorker", f"{workers.examples_per_worker:,} {given}", remedy)
    else:
        remedy = f"give {enough:,}"
        if workers.minimum > enough:
            remedy = f"give {enough:,}, and minimum too"
        yield Fault("spec.workers.maximum", f"{workers.maximum:,} {given}", remedy)


def workers_that_wait(job: FinishedPlan) -> Iterable[Fault]:
    """Yield a fault if workers wait too long for the busiest of them, which has a shard more than the others."""
    if not job.spec.exchange.entry.uses_workers or job.plan.replicas > 1:
        return
    shard = job.plan.shard
    waiting = [stage for stage in job.grown.stages if _waste(job, stage, shard) > MOST_WASTE]
    if not waiting:
        return
    worst = max(waiting, key=lambda stage: _waste(job, stage, shard))
    given = (
        f"{shard:,} makes {counted(job.shards_of(worst.batch_size), 'shard')} for {worst.workers:,} workers "
        f"{_where(worst, waiting)}, of whose time {float(_waste(job, worst, shard)):.0%} is waiting for the worker "
        "with the most shards"
    )
    better = _better_shard(job)
    remedy = "give batch sizes, or numbers of workers, that divide evenly"
    if better is not None:
        remedy = f"give {better:,}"
    yield Fault("spec.batch.shard", given, remedy)


def _waste(job: FinishedPlan, stage: Stage, shard: int) -> Fraction:
    """Return the share of the workers' time in a full batch that they wait for the busiest; 0 if some have no shard."""
    shards = shard_count(min(stage.batch_size, job.plan.examples_per_epoch), shard)
    if shards < stage.workers:
        return Fraction(0)  # workers_without_shard tells of these
    return 1 - Fraction(shards, stage.workers * ceil(Fraction(shards, stage.workers)))


def _better_shard(job: FinishedPlan) -> int | None:
    """Return the largest shard with which every worker has shards and no stage wastes too much; None if none does."""
    used = {stage: min(stage.batch_size, job.plan.examples_per_epoch) for stage in job.grown.stages}
    largest = LARGEST_BATCH
    if job.spec.batch.growth.entry.needs_noise:
        largest = job.spec.batch.initial - 1  # its first batch needs two shards
    candidates = {ceil(Fraction(used[stage], stage.workers * each)) for stage in used for each in range(1, MOST_EACH)}
    for shard in sorted(candidates, reverse=True):
        evenly = all(
            shard_count(used[stage], shard) >= stage.workers and _waste(job, stage, shard) <= MOST_WASTE
            for stage in used
        )
        if evenly and shard <= largest:
            return shard
    return None


RULES: tuple[Callable[[FinishedPlan], Iterable[Fault]], ...] = (
    maximum_unreached,
    batch_past_data,
    warmup_idle,
    device_idle,
    workers_without_shard,
    workers_that_wait,
    workers_unreached,
    loaders_idle,
    evaluation_idle,
)


def _where(worst: Stage, stages: list[Stage]) -> str:
    """Return the stage, counted from 1, and how many others there are: `in stage 3 and 2 others`."""
    where = f"in stage {worst.index + 1}"
    if len(stages) == 2:
        return f"{where} and 1 other"
    if len(stages) > 2:
        return f"{where} and {len(stages) - 1} others"
    return where


# --- What else a reader of the plan should know ---


def clock_note(spec: JobSpec) -> str:
    """Return a note that a second run will differ if the growth rule reads a clock; empty for other rules."""
    if not spec.batch.growth.entry.looks_at_clock:
        return ""
    return (
        f"note: {spec.batch.growth.type} looks at a clock, so another run may decide otherwise and end with other "
        "weights. To repeat a run exactly, train what `batchgrowth manifest RUN` prints."
    )


def exchange_note(spec: JobSpec) -> str:
    """Return a note about a second run if its weights will differ; empty if they will be the same."""
    if spec.promise != "Nondeterministic":
        return ""
    if spec.exchange.entry.promise == "Nondeterministic":
        whose = f"of exchange {spec.exchange.type}"
    else:
        whose = "that a GPU computes with deterministic: false"
    return (
        f"note: the weights {whose} differ from run to run, even on the same machine; the promise of equal weights "
        "does not cover them."
    )


def gain_note(spec: JobSpec) -> str:
    """Return a note about how a measured gain changes the plan's learning rates; empty without a gain."""
    rate = spec.learning_rate
    if not rate.entry.gain:
        return ""
    return (
        f"note: {rate.rule} multiplies these learning rates by a gain between 1 and B / {spec.batch.initial:,}, for a "
        f"batch of B, which training measures {rate.settings.when}."
    )


def shard_note(plan: Plan, spec: JobSpec) -> str:
    """Return a note about the cost of a batch.shard below workers.examplesPerWorker; empty if it costs nothing.

    A worker computes its shards one after another, each with a pass forward and backward.
    """
    if spec.batch.growth.entry.needs_noise or spec.learning_rate.entry.gain:
        return ""  # the noise shows only between shards
    fine = _passes(plan, plan.shard)
    coarse = _passes(plan, spec.workers.examples_per_worker)
    if fine <= coarse:
        return ""
    return (
        f"note: batch.shard {plan.shard:,} is finer than the planned workers can use: each computes {fine:,} shards "
        f"one after another, {fine / coarse:.1f} times as many as with shards of workers.examplesPerWorker, "
        f"{spec.workers.examples_per_worker:,}. Small models train slower by almost that factor; leave batch.shard out."
    )


def _passes(plan: Plan, shard: int) -> int:
    """Return the number of shards that the busiest worker computes over the whole plan."""
    return sum(stage.updates * ceil(ceil(stage.batch_size / shard) / stage.workers) for stage in plan.stages)
