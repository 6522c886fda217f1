"""Sentences about where the state of a job is kept."""

from batchgrowth_operator.decide.drift import is_smaller
from batchgrowth_operator.decide.situation import Situation
from batchgrowth_operator.decide.storage import class_of, size_of
from batchgrowth_operator.seen.observed import CLAIM

NOT_KEPT = (
    "Nothing keeps the job's checkpoints: a suspended job and a lost trainer start over. "
    "Before a job begins, spec.checkpoint gives them a place: volume, such as {size: 10Gi}, or uri."
)
AWAITED = (
    "The trainer that runs began without a place for checkpoints, and would lose its training by moving to that of "
    "spec.checkpoint: the next trainer has it."
)
STARTS_OVER = "The trainer starts over, since nothing keeps its checkpoints"


def remark(s: Situation) -> str:
    """What the spec does not say of the storage, each a sentence after a space; empty if it says everything."""
    storage = s.storage
    if storage.is_awaited:
        return f" {AWAITED}"
    if not storage.is_kept:
        return f" {NOT_KEPT}"
    if storage.is_default:
        claim = f"the claim {storage.claim} of {storage.size}, which is deleted with the job"
        return f" spec.checkpoint names no place for checkpoints, so they are kept in {claim}."
    found = s.seen.child(CLAIM, storage.claim)
    size, storage_class = size_of(found), class_of(found)
    text = ""
    if storage.size and is_smaller(storage.size, size):
        text += f" The claim {storage.claim} keeps its {size}, since claims do not shrink."
    if found is not None and storage.storage_class and storage.storage_class != storage_class:
        text += f" The claim {storage.claim} keeps its class, {storage_class or 'which has no name'}."
    return text
