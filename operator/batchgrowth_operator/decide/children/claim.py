"""The claim that the operator makes for the checkpoints of one job."""

from typing import Any

from batchgrowth_operator.decide.children.base import child
from batchgrowth_operator.decide.decision import Manifest
from batchgrowth_operator.decide.drift import is_smaller
from batchgrowth_operator.decide.situation import Situation
from batchgrowth_operator.decide.storage import class_of, size_of
from batchgrowth_operator.seen.observed import CLAIM


def checkpoint_claim(s: Situation) -> Manifest:
    """The claim. One that exists keeps its class and never shrinks: the API server would refuse either change.

    It is the trainer's alone, so one node at a time needs to mount it.
    """
    storage, found = s.storage, s.seen.child(CLAIM, s.storage.claim)
    size, known = storage.size, size_of(found)
    storage_class = class_of(found) if found is not None else storage.storage_class
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": known if known and is_smaller(size, known) else size}},
        **({"storageClassName": storage_class} if storage_class else {}),
    }
    return child(s, "v1", CLAIM, storage.claim, "checkpoints", spec=spec)
