"""On a GPU, too, the weights do not depend on how many members there are, nor on the exchange."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.choices import INEXACT, REPEATABLE
from batchgrowth.plan import Plan
from batchgrowth.position import Position
from dask_workers import workers

Digest = Callable[..., str]
CHARACTERS = Path(__file__).parents[2] / "examples" / "characters"
ALONE = "exchange.type=SingleProcess"


def test_one_process_repeats_itself(digest: Digest) -> None:
    """The kernels are deterministic."""
    assert digest(1, ALONE) == digest(1, ALONE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_members_on_one_device(digest: Digest, exchange: str, number: int) -> None:
    """Any exchange, any number of members."""
    assert digest(1, ALONE) == digest(number, f"exchange.type={exchange}")


@pytest.mark.parametrize("name", REPEATABLE)
def test_logical_replicas(digest: Digest, name: str) -> None:
    """Two workers hold the replicas that one holds."""
    assert digest(1, f"exchange.type={name}") == digest(2, f"exchange.type={name}")


@pytest.mark.parametrize("name", sorted({*INEXACT} - {*REPEATABLE}))
def test_exchanges_that_differ_each_time(digest: Digest, name: str) -> None:
    """They train to the end."""
    assert digest(2, f"exchange.type={name}")


@pytest.mark.parametrize(
    "changes",
    [
        ("optimizer={type: Adam}", "learningRate.initial=0.001"),
        ("optimizer={type: LBFGS}", "learningRate={initial: '1', rule: Constant}", "epochs=2"),
        ("optimizer={type: LAMB, clipping: {norm: '1'}, averaging: {decay: '0.9'}}", "learningRate.initial=0.01"),
        ("precision=BFloat16",),
        ("precision=TensorFloat32",),
        ("workers.loaders=1", "workload.entrypoint=slow_digits:by_item"),
        ("exchange.compression=Int8",),
        ("batch={initial: 64, maximum: 512, shard: 32, growth: {type: NoiseScale}}",),
    ],
    ids=["Adam", "L-BFGS", "LAMB, clipping and averaging", "bfloat16", "TF32", "loaders", "Int8", "measured"],
)
def test_what_else_is_computed(digest: Digest, changes: tuple[str, ...]) -> None:
    """A state of two vectors, the coordinator's products, autocast, pinned batches, rounding, and a measured growth."""
    assert digest(1, ALONE, *changes) == digest(2, *changes)


def test_compiled(digest: Digest) -> None:
    """By Triton: each process compiles for itself."""
    assert digest(1, "compile=true", "epochs=2") == digest(2, "compile=true", "epochs=2")


def test_convolutions_and_batch_norm(digest: Digest) -> None:
    """A wide residual network on images."""
    images = (
        "workload.entrypoint=batchgrowth_trainer.workloads.synthetic:workload",
        "workload.arguments={model: wrn, examples: '256', test: '32'}",
        "workload.examples=256",
        "batch.initial=32",
        "batch.maximum=64",
        "batch.shard=16",
        "epochs=2",
    )
    assert digest(1, *images) == digest(2, *images)


def test_attention(digest: Digest) -> None:
    """Its kernels add in another order each time, unless torch refuses what is not deterministic."""
    few = (
        "workload.arguments={windows: '512', test: '20', length: '64', width: '128', depth: '2', heads: '4'}",
        "workload.examples=512",
        "batch={initial: 64, maximum: 128, shard: 32, growth: {type: InsteadOfDecay}}",
        "learningRate.warmup.updates=3",
    )
    paths = {"paths": (str(CHARACTERS),)}
    one, two, again = (digest(number, *few, manifest="characters/growth.yaml", **paths) for number in (1, 2, 2))
    assert one == two == again


def test_kill_9(digest: Digest) -> None:
    """Of one worker, then of all: their successors on the same device go on from a member's state and a checkpoint."""
    changes = (
        "workload.entrypoint=slow_digits:by_item", "checkpoint.everySeconds=1",
        "batch.initial=64", "batch.maximum=256", "batch.growth.geometric.everyEpochs=2",
    )  # fmt: skip
    moments, chosen = [(10, 1), (40, 2)], random.Random(3)

    def desired_workers(_plan: Plan, position: Position) -> int:
        if moments and position.update >= moments[0][0]:
            _, most = moments.pop(0)
            there: list[Any] = workers()
            for worker in chosen.sample(there, min(most, len(there))):
                os.kill(worker.pid, signal.SIGKILL)
        return 2

    assert digest(1, *changes) == digest(2, *changes, desired_workers=desired_workers)
    assert not moments
