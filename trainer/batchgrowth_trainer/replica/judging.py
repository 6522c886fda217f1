"""Evaluates a replica, and keeps what follows from it: the end of the training, and the best weights."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from batchgrowth.plan import evaluation_due

from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.replica.evaluation import Reduce, evaluate
from batchgrowth_trainer.replica.replica import Replica

_UNWATCHED = nullcontext()


def judged(
    replica: Replica, rank: int, size: int, reduce: Reduce, watched: AbstractContextManager[Any] = _UNWATCHED
) -> dict[str, float]:
    """What `evaluate` returns, which the replica's judgement has then taken into account."""
    values = evaluate(replica, rank, size, reduce, watched)
    if replica.judgement.is_asked:
        with replica.as_evaluated():
            replica.judgement.take(replica.position, values, replica.model_tensors())
    return values


def is_judged(replica: Replica) -> bool:
    """Whether an evaluation that is due where the replica stands has been taken into account, if it must be."""
    known = replica.judgement.known(replica.position.epoch)
    return not evaluation_due(replica.spec, replica.plan, replica.position, known)


def trained_of(replica: Replica) -> Trained:
    """What the training has come to: the state, and the model's own state dict, now and at its best."""
    best = replica.judgement.best_state_dict(replica.model, replica.model_tensors())
    return Trained(replica.snapshot(), replica.state_dict(), best)
