"""The mean loss and metrics over the test set, in eval mode; the same numbers for any number of members.

The test set is cut into fixed chunks. Each member evaluates a run of chunks, and their sums are added along the same
fixed tree as gradients.
"""

from collections.abc import Callable, Sequence

import torch
from batchgrowth.shards import tree_sum
from torch import Tensor

from batchgrowth_trainer.blame import reported_as_workload_error
from batchgrowth_trainer.replica.devices import autocast, to_device
from batchgrowth_trainer.replica.draws import draw_seed
from batchgrowth_trainer.replica.reading import seeded_fetch
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.tree import Layout, lay_out
from batchgrowth_trainer.workload import Dataset, checked, predict

_CHUNK = 256  # examples per forward pass

Reduce = Callable[[Sequence[Tensor], int, Tensor], Tensor]
"""(rows of this member's nodes, number of chunks, a row with the shape and dtype of the result) -> the total row."""


def evaluate(replica: Replica, rank: int, size: int, reduce: Reduce) -> dict[str, float]:
    """{"loss": mean loss, metric: mean, …} over the test set; empty without a test set.

    Raises WorkloadError for a metric that does not return one value per example.
    """
    test = replica.workload.test
    if test is None:
        return {}
    names = ("loss", *replica.workload.metrics)
    chunks = -(-len(test) // _CHUNK)
    layout = lay_out(chunks, size)
    like = torch.zeros(len(names), dtype=torch.float64)
    total = reduce(node_sums(replica, test, layout, rank), chunks, like)
    return dict(zip(names, (total / len(test)).tolist(), strict=True))


def node_sums(replica: Replica, test: Dataset, layout: Layout, rank: int) -> list[Tensor]:
    """The sums (loss, metrics, …), float64, of each of this member's nodes of chunks."""
    replica.model.eval()
    start, sums = replica.buffers.clone(), {}
    with torch.no_grad():
        for chunk in range(*layout.runs[rank]):
            sums[chunk] = _chunk_sums(replica, test, chunk)
            replica.on_shard()
            replica.buffers.restore(start)  # if a model writes buffers in eval mode, the next chunk must not see it
    replica.model.train()
    return [tree_sum(lo, hi, sums.__getitem__, torch.add) for lo, hi in layout.nodes[rank]]


def _chunk_sums(replica: Replica, test: Dataset, chunk: int) -> Tensor:
    indices = torch.arange(chunk * _CHUNK, min((chunk + 1) * _CHUNK, len(test)))
    seed = draw_seed(replica.spec.seed, "evaluation", chunk)
    workload = replica.workload
    with reported_as_workload_error(f"evaluating the test examples from {indices[0]}"):
        inputs, target = to_device(seeded_fetch(test, indices, seed, workload.collate), replica.device)
        with autocast(replica.spec, replica.device):
            output = predict(replica.model, inputs)
            values = [checked(workload.loss(output, target), len(indices))]
            values += [checked(m(output, target), len(indices), f"metrics.{n}") for n, m in workload.metrics.items()]
        return torch.stack([v.double().sum() for v in values]).cpu()
