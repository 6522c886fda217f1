"""The mean loss and metrics over the test sets, in eval mode; the same numbers for any number of members.

When an evaluation is due is decided in batchgrowth/evaluations.py, which worker/member.py and drivers/ ask after each
update.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.evaluations import evaluation_due
from batchgrowth.shards import Layout, lay_out, tree_sum
from torch import Tensor

from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.replica.data import Request, to_device
from batchgrowth_trainer.replica.flat import named_parameters
from batchgrowth_trainer.replica.python_state import Change, PythonState, is_alike
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.reproducible import autocast
from batchgrowth_trainer.replica.seeds import draw_seed, seed_generators
from batchgrowth_trainer.replica.state_dict import exported
from batchgrowth_trainer.user_errors import reported_as_workload_error, seen_at
from batchgrowth_trainer.workload import checked, predict

# A test set is cut into fixed chunks. Each member evaluates a run of chunks, and their sums are added along the same
# fixed tree as gradients. For metrics of the whole set, outputs and targets are gathered by adding them up too: each
# member has zeros where the others have theirs.

MOST_NUMBERS = 20_000_000  # outputs or targets that are gathered for metrics of the whole set, as float64
_CHUNK = 256  # examples per forward pass
_TRIED = 4  # examples of each test set, before the first update
_NO_WATCHDOG = nullcontext()

Reduce = Callable[[Sequence[Tensor], int, Tensor], Tensor]
"""(rows of this member's nodes, number of leaves of the tree, room for the total) -> the total row."""
Values = dict[tuple[str, str], float]
"""The values for a few examples of each test set, by the names of the function and the set."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A member's results for a chunk of a test set, which begins with example `first`.

    `sums` of loss and metrics, float64, shape (1 + metrics,). Outputs and targets have their own shapes behind a first
    axis of the chunk's examples; they are None without metrics of the whole set.
    """

    first: int
    sums: Tensor
    output: Tensor | None = None
    target: Tensor | None = None


def evaluate(
    replica: Replica, rank: int, size: int, reduce: Reduce, watchdog: AbstractContextManager[Any] = _NO_WATCHDOG
) -> dict[str, float]:
    """Return {"loss": mean loss, metric: mean, …, metric of the whole set: value} over each test set.

    Return an empty dictionary without a test set. The keys of every test set but the first begin with its name, as in
    NAME.loss. Computes chunks within `watchdog`; waits for others and computes metrics of the whole set outside of it.
    Raises DataError, and WorkloadError if the workload's code fails or a metric does not return one value per example,
    or one for the whole set.
    """
    values: dict[str, float] = {}
    for name in replica.workload.test_sets:
        of_set = _evaluated(replica, name, rank, size, reduce, watchdog)
        values |= {f"{name}.{key}" if values else key: value for key, value in of_set.items()}
    return values


def _evaluated(
    replica: Replica, name: str, rank: int, size: int, reduce: Reduce, watchdog: AbstractContextManager[Any]
) -> dict[str, float]:
    workload = replica.workload
    test = replica.workload.test_sets[name]
    names = ("loss", *workload.metrics)
    number = -(-len(test) // _CHUNK)
    layout = lay_out(number, size)
    with watchdog:  # computing alone: a member that waits for slower ones below does not hang
        chunks = computed(replica, name, layout.runs[rank])
        # Every member needs the shapes of chunk 0 to lay out the same row, so the others compute that chunk too.
        first = chunks
        if workload.whole_set_metrics and 0 not in chunks:
            first = computed(replica, name, (0, 1))
    total = reduce(node_sums(chunks, layout, rank), number, torch.zeros(len(names), dtype=torch.float64))
    values = dict(zip(names, (total / len(test)).tolist(), strict=True))
    if not workload.whole_set_metrics:
        return values
    shapes = first[0]
    # Each member is one leaf of this tree: what it has not computed is 0 in its row, and adds nothing.
    row = gathered_row(chunks, shapes, len(test))
    total = reduce([row], size, _blank(shapes, len(test)))
    return values | _of_the_whole_set(replica, name, len(test), shapes, total)


def training_loss(replica: Replica, indices: Tensor) -> float:
    """Return the mean loss of the training examples at `indices`, shape (N,), int64, in eval mode.

    They are not augmented. Raises WorkloadError and DataError.
    """
    sums: list[float] = []
    with _evaluating(replica) as restore:
        for first in range(0, len(indices), _CHUNK):
            chunk = indices[first : first + _CHUNK]
            request = Request(None, chunk, draw_seed(replica.spec.seed, "reading for the training loss", len(sums)))
            with reported_as_workload_error(f"evaluating the training examples from {int(chunk[0])}"):
                inputs, target = to_device(replica.reader.read_aside(request), replica.device)
                seed_generators(draw_seed(replica.spec.seed, "training loss", len(sums)))
                with autocast(replica.spec, replica.device):
                    values = replica.workload.values(replica.model, inputs, target)
                losses = checked(values, len(chunk), function=replica.workload.loss)
                sums.append(float(losses.double().sum()))
            restore()
    return math.fsum(sums) / len(indices)


def try_evaluation(replica: Replica) -> None:
    """Evaluate a few examples of each test set, and each metric on them; the replica stays as it was.

    So an error is found before the first update, and not after the first epoch. The last chunk is tried too if it has
    as few examples, since a metric may not expect so few. If a metric of the whole set fails on a few, the whole set is
    evaluated, and only an error on that counts. If Python state has changed, or there are metrics of the whole set, the
    same examples are evaluated again after others: the values must not depend on what was evaluated before. Raises what
    `evaluate` does.
    """
    workload = replica.workload
    places: dict[str, Any] = {"model": replica.model, "loss": workload.loss}
    places |= {f"metrics.{name}": metric for name, metric in workload.metrics.items()}
    places |= {f"whole_set_metrics.{name}": metric for name, metric in workload.whole_set_metrics.items()}
    tensors = [*replica.tensors().values(), *named_parameters(replica.modules).values()]
    state = PythonState(places, tensors, environment=True)
    values = _tried(replica)
    changes = state.changes()
    if replica.spec.deterministic is not False and (changes or workload.whole_set_metrics):
        state.restore()
        with suppress(WorkloadError):  # the first examples of a set are all that a metric must be able to take
            _tried(replica, begin=_TRIED, is_again=True)
        _check_same(values, _tried(replica, is_again=True), changes, places)
    state.restore()


def _tried(replica: Replica, begin: int = 0, *, is_again: bool = False) -> Values:
    """Return the values of a few examples of each test set from `begin` on, by the name of the function and the set.

    If a metric of the whole set fails on a few examples, the set's values of such metrics are left out, and, unless
    `is_again`, the whole set is evaluated, whose error counts.
    """
    workload = replica.workload
    values: Values = {}
    for name, dataset in workload.test_sets.items():
        first = _request(replica, name, 0)
        last = _request(replica, name, (len(dataset) - 1) // _CHUNK)
        few = first.indices[begin : begin + _TRIED]
        tried = [replace(first, indices=few if len(few) else first.indices[:_TRIED])]
        if len(last.indices) <= _TRIED < len(dataset):
            tried.append(last)
        with _evaluating(replica):
            results = [_of_request(replica, request, iter([request])) for request in tried]
        sums = torch.stack([one.sums for one in results]).sum(dim=0).tolist()
        values |= zip(((f, name) for f in ("loss", *(f"metrics.{one}" for one in workload.metrics))), sums, strict=True)
        if not workload.whole_set_metrics:
            continue
        count = len(tried[0].indices)
        row = gathered_row({0: replace(results[0], first=0)}, results[0], count)
        try:
            of_set = _of_the_whole_set(replica, name, count, results[0], row)
        except WorkloadError:
            of_set = {}
            if not is_again:
                evaluate(replica, 0, 1, lambda rows, _number, _room: rows[0])
        values |= {(f"whole_set_metrics.{one}", name): value for one, value in of_set.items()}
    return values


def _check_same(values: Values, again: Values, changes: Sequence[Change], functions: Mapping[str, Any]) -> None:
    """Raise WorkloadError if these `functions` gave the same examples other values once others were evaluated."""
    for place, value in values.items():
        if is_alike(value, again.get(place, value)):
            continue
        name = place[0]
        change = next((one for one in changes if one.path.startswith(f"{name}.")), next(iter(changes), None))
        because = ""
        line = seen_at(functions[name])
        if change is not None:
            because = f"; {change.path} changes with each evaluation"
            line = change.seen_at()
        raise WorkloadError(
            f"{name}: the same examples and weights give {value:g}, and {again[place]:g} once others were evaluated, "
            f"so the values would depend on the workers{because}; compute a value from the arguments alone, since the "
            f"trainer takes the mean over the test set{line}"
        )


@contextmanager
def _evaluating(replica: Replica) -> Iterator[Callable[[], None]]:
    """Put the modules into eval mode for the block, with the weights to evaluate; reset modes and buffers after it.

    Yield a function that resets modes and buffers to the block's beginning.
    """
    with (
        replica.evaluating() as restore_modes,
        torch.no_grad(),
        replica.as_evaluated(),
        replica.buffers.kept() as start,
    ):

        def restore() -> None:
            replica.buffers.restore(start)
            restore_modes()

        yield restore


def computed(replica: Replica, name: str, run: tuple[int, int]) -> dict[int, Chunk]:
    """Return the results for that run of chunks of the named test set, by number."""
    chunks = {}
    with _evaluating(replica) as restore:
        for chunk in range(*run):
            coming = map(partial(_request, replica, name), range(chunk, run[1]))
            chunks[chunk] = _of_request(replica, _request(replica, name, chunk), coming)
            if replica.on_shard is not None:
                replica.on_shard()
            restore()  # if a model writes buffers in eval mode, or changes modes, the next chunk must not see it
    return chunks


def node_sums(chunks: dict[int, Chunk], layout: Layout, rank: int) -> list[Tensor]:
    """Return the sums (loss, metrics, …), float64, over each node of chunks that this member computes."""
    return [tree_sum(lo, hi, lambda chunk: chunks[chunk].sums, torch.add) for lo, hi in layout.nodes[rank]]


def gathered_row(chunks: dict[int, Chunk], shapes: Chunk, examples: int) -> Tensor:
    """Return a row for the outputs and targets of all examples, which is 0 outside of this member's chunks.

    Raises WorkloadError if a chunk's shapes or dtypes differ from `shapes`, those of the test set's first chunk, or if
    an integer has no exact float64, which happens beyond 2^53.
    """
    row = _blank(shapes, examples)
    output, target = _halves(row, shapes, examples)
    for chunk in chunks.values():
        for name, whole, mine, like in (
            ("output", output, chunk.output, shapes.output), ("target", target, chunk.target, shapes.target),
        ):  # fmt: skip
            assert mine is not None
            assert like is not None
            if (mine.shape[1:], mine.dtype) != (like.shape[1:], like.dtype):
                raise WorkloadError(
                    f"whole_set_metrics: the {name} of an example is {_kind(mine)} from test example {chunk.first} on, "
                    f"and {_kind(like)} at first; they need one shape and dtype, so pad all to one length"
                )
            if not (mine.is_floating_point() or torch.equal(mine.double().to(mine.dtype), mine)):
                raise WorkloadError(
                    f"whole_set_metrics: the {name}s from test example {chunk.first} on have whole numbers beyond "
                    "2^53, which are rounded on the way; give smaller ones, such as the number of a group for its hash"
                )
            # A sum of zeros and -0.0 is 0.0, so make it 0.0 here for one member too.
            whole[chunk.first : chunk.first + len(mine)] = mine.reshape(len(mine), -1).double() + 0.0
    return row


def _request(replica: Replica, name: str, chunk: int) -> Request:
    examples = len(replica.workload.test_sets[name])
    indices = torch.arange(chunk * _CHUNK, min((chunk + 1) * _CHUNK, examples))
    return Request(name, indices, draw_seed(replica.spec.seed, f"reading for evaluation {name}", chunk))


def _of_request(replica: Replica, request: Request, coming: Iterator[Request]) -> Chunk:
    """Return the result of this request; `coming` has this request first, then the ones to read ahead."""
    name = request.test or ""
    workload = replica.workload
    indices = request.indices
    first = int(indices[0])
    with reported_as_workload_error(f"evaluating the test examples{name and f' {name}'} from {first}"):
        inputs, target = to_device(replica.reader.read(request, lambda: coming), replica.device)
        seed_generators(draw_seed(replica.spec.seed, f"evaluation {name}", first // _CHUNK))
        with autocast(replica.spec, replica.device):
            output = predict(replica.model, inputs)
            values = [checked(workload.loss(output, target), len(indices), function=workload.loss)]
        for metric, function in workload.metrics.items():
            values.append(checked(function(output, target), len(indices), f"metrics.{metric}", function))
        sums = torch.stack([v.double().sum() for v in values]).cpu()
        if not workload.whole_set_metrics:
            return Chunk(first, sums)
        for part, value in (("output", output), ("target", target)):
            _check_gathered(part, value, len(indices), len(workload.test_sets[name]))
        return Chunk(first, sums, output.cpu(), target.cpu())


def _kind(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape[1:])}"


def _check_gathered(name: str, value: Any, examples: int, whole: int) -> None:
    if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != examples or value.is_complex():
        shape = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise WorkloadError(
            f"whole_set_metrics: the {name} for {examples} examples is {shape}; they need one tensor of real numbers "
            f"whose first axis has {examples}"
        )
    if value.numel() // examples * whole > MOST_NUMBERS:
        raise WorkloadError(
            f"whole_set_metrics: the {name} has {value.numel() // examples} numbers for each of {whole:,} examples; "
            f"at most {MOST_NUMBERS:,} can be gathered. Compute in the model what the metric needs, such as the "
            "largest score, or use metrics of one value per example"
        )


def _of_the_whole_set(replica: Replica, test_set: str, examples: int, shapes: Chunk, row: Tensor) -> dict[str, float]:
    # Every member computes the metrics, and a metric that draws random numbers must draw the same in each.
    seed_generators(draw_seed(replica.spec.seed, f"whole test set {test_set}", 0))
    parts = zip(_halves(row, shapes, examples), (shapes.output, shapes.target), strict=True)
    output, target = (
        part.reshape(examples, *like.shape[1:]).to(like.dtype) for part, like in parts if like is not None
    )
    values = {}
    for name, metric in replica.workload.whole_set_metrics.items():
        with reported_as_workload_error(f"whole_set_metrics.{name}"):
            value = metric(output, target)
            values[name] = _number(name, value, metric)
    return values


def _number(name: str, value: Any, metric: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, Real):
        raise WorkloadError(f"whole_set_metrics.{name}: returned {value!r:.100}; return one number{seen_at(metric)}")
    return float(value)


def _widths(shapes: Chunk) -> tuple[int, int]:
    assert shapes.output is not None
    assert shapes.target is not None
    return shapes.output[0].numel(), shapes.target[0].numel()


def _blank(shapes: Chunk, examples: int) -> Tensor:
    return torch.zeros(sum(_widths(shapes)) * examples, dtype=torch.float64)


def _halves(row: Tensor, shapes: Chunk, examples: int) -> tuple[Tensor, Tensor]:
    """Return views of the outputs, shape (examples, numbers of each), and of the targets."""
    outputs, targets = _widths(shapes)
    cut = examples * outputs
    return row[:cut].view(examples, outputs), row[cut:].view(examples, targets)


def judged(
    replica: Replica, rank: int, size: int, reduce: Reduce, watchdog: AbstractContextManager[Any] = _NO_WATCHDOG
) -> dict[str, float]:
    """Evaluate the replica, let its judgement take the values into account, and return the values."""
    values = evaluate(replica, rank, size, reduce, watchdog)
    if replica.judgement.is_asked:
        with replica.as_evaluated():
            replica.judgement.take(replica.position, values, replica.model_tensors())
        replica.adopt_decisions()
    return values


def is_judged(replica: Replica) -> bool:
    """Return whether the evaluation that is due at the replica's position, if any, has been taken into account."""
    known = replica.judgement.known(replica.position.epoch)
    return not evaluation_due(replica.spec, replica.plan, replica.position, known)


def trained_of(replica: Replica) -> Trained:
    """Return the result of training: the state, and the model's state dict now and at its best."""
    best = replica.judgement.best_state_dict(partial(exported, replica.modules), replica.model_tensors())
    return Trained(replica.snapshot(), replica.state_dict(), best)
