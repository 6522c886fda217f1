"""Two operators with different images that watch one namespace: a job has one of them, by its class."""

from __future__ import annotations

import time
from typing import Any

import pytest
from batchgrowth_operator.seen.observed import Ref
from operator_field import CHILDREN, IMAGE, JOB, TRAINER, WORKERS, Field, until

OTHER_CLASS, OTHER_IMAGE = "blue", "example/trainer:2"


@pytest.fixture
def shared(ground: Field) -> Field:
    """A namespace with two operators: one for jobs without a class, and one for those of the other class."""
    ground.start(operator_class=OTHER_CLASS, image=OTHER_IMAGE)
    return ground


def images(field: Field) -> set[str]:
    """The images of the trainer and the workers."""
    found = [field.get(ref) for ref in (TRAINER, WORKERS)]
    return {child["spec"]["template"]["spec"]["containers"][0]["image"] if child else "" for child in found}


def unchanged(field: Field) -> list[Any]:
    """All objects, which nobody changes within three seconds."""
    before = field.rest()
    time.sleep(3)
    assert before == field.everything()
    return before


@pytest.mark.fault("A12")
def test_a_job_has_the_operator_of_its_class(shared: Field) -> None:
    shared.apply()
    until(shared.is_complete)
    assert images(shared) == {IMAGE}
    first = unchanged(shared)

    shared.patch(JOB, {"spec": {"operatorClass": OTHER_CLASS}})
    until(lambda: "deletionTimestamp" in shared.get(TRAINER)["metadata"])
    shared.patch(TRAINER, {"metadata": {"finalizers": None}})  # no controller removes them here
    until(lambda: images(shared), {OTHER_IMAGE})
    until(shared.is_complete)
    now = unchanged(shared)
    assert [first[0]["metadata"]["uid"]] * len(CHILDREN) == [
        child["metadata"]["ownerReferences"][0]["uid"] for child in now[1 : 1 + len(CHILDREN)]
    ]


def test_a_job_of_a_class_that_nobody_serves_is_left_alone(shared: Field) -> None:
    for name, served in (("none", {}), (OTHER_CLASS, {"operatorClass": OTHER_CLASS})):
        shared.apply(name, **served)
    for name in ("none", OTHER_CLASS):
        until(lambda name=name: "status" in shared.get(Ref(JOB.kind, name)))
    shared.apply(operatorClass="green")
    shared.rest()
    assert "status" not in shared.get(JOB)
    assert [ref for ref in CHILDREN if shared.get(ref) is not None] == []
