"""What the operator answers: `status` of a BatchGrowthJob.

Conditions are the truth and `phase` their summary for the eye; `batchgrowth.conditions` has their words.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints

from batchgrowth.conditions import CONDITIONS
from batchgrowth.schema.model import Model

MOST_HISTORY = 64

Phase = Literal["Pending", "Training", "Resizing", "Suspended", "Stalled", "Succeeded", "Failed"]
PHASES: tuple[Phase, ...] = get_args(Phase)

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
LongCount = Annotated[int, Field(ge=0, le=2**53)]
Decimal = Annotated[str, StringConstraints(pattern=r"^-?[0-9][0-9.e+-]*$", min_length=1, max_length=32)]
Time = Annotated[str, StringConstraints(max_length=32), Field(json_schema_extra={"format": "date-time"})]
Name = Annotated[str, StringConstraints(max_length=253)]


class Condition(Model):
    """One condition, in the form of metav1.Condition."""

    type: Annotated[
        Literal["Accepted", "ClusterReady", "Training", "Resizing", "Degraded", "Stalled", "Suspended", "Succeeded"],
        Field(description="Which condition. " + " ".join(f"{name}: {text}" for name, text in CONDITIONS.items())),
    ]
    status: Annotated[Literal["True", "False", "Unknown"], Field(description="Whether it holds.")]
    reason: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z]([A-Za-z0-9]*)$",
            min_length=1,
            max_length=64,
            description="Why, as one word of a fixed list.",
        ),
    ]
    message: Annotated[str, Field(max_length=1024, description="Why, as a sentence for people.")] = ""
    observed_generation: Annotated[
        LongCount, Field(description="The metadata.generation of the job that this was said about.")
    ] = 0
    last_transition_time: Annotated[Time, Field(description="When the status last changed, in RFC 3339.")]


class BatchStatus(Model):
    """The batch now and next."""

    current: Annotated[Count, Field(description="Batch size of the present stage. Unit: examples.")] = 0
    next: Annotated[Count | None, Field(description="Batch size of the next stage; absent in the last one.")] = None
    next_at_epoch: Annotated[Decimal | None, Field(description="Epoch at which the next stage begins.")] = None


class WorkersStatus(Model):
    """The workers wanted and there."""

    desired: Annotated[Count, Field(description="Workers that the plan wants now.")] = 0
    requested: Annotated[Count, Field(description="Replicas asked of the worker Deployment, ahead of a milestone.")] = 0
    requested_time: Annotated[Time | None, Field(description="When that number last changed, in RFC 3339.")] = None
    resize_seconds: Annotated[
        Decimal | None, Field(description="How long the workers asked for last took to come. Unit: seconds.")
    ] = None
    lead_seconds: Annotated[
        Decimal | None,
        Field(description="How long workers take to come, smoothed: so far ahead they are asked for. Unit: seconds."),
    ] = None
    ready: Annotated[Count, Field(description="Workers that have joined the cluster.")] = 0
    selector: Annotated[str, Field(max_length=253, description="Label selector of the worker pods.")] = ""


class CheckpointStatus(Model):
    """The newest whole checkpoint."""

    update: Annotated[LongCount, Field(description="Updates done when it was taken.")]
    time: Annotated[Time, Field(description="When it was written, in RFC 3339.")]


class TrainerMetric(Model):
    """One number of the training."""

    name: Annotated[str, Field(min_length=1, max_length=64, description="Name, such as loss or accuracy.")]
    value: Annotated[Decimal, Field(description="The last value, as a decimal string.")]


class TrainerStatus(Model):
    """How the training goes, with the field names of Kubeflow's TrainJob."""

    progress_percentage: Annotated[
        int | None, Field(ge=0, le=100, description="Part of the updates that is done. Unit: percent.")
    ] = None
    estimated_remaining_seconds: Annotated[
        LongCount | None, Field(description="Time to the end at the present pace. Unit: seconds.")
    ] = None
    epoch: Annotated[Decimal | None, Field(description="Epochs done, with the part of the present one.")] = None
    start: Annotated[
        LongCount | None, Field(description="Which start of the trainer reported; later starts have larger numbers.")
    ] = None
    update: Annotated[LongCount | None, Field(description="Updates done.")] = None
    loss: Annotated[Decimal | None, Field(description="Training loss of the last report.")] = None
    metrics: Annotated[
        tuple[TrainerMetric, ...],
        Field(
            strict=False,
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            description="Last values of the workload's metrics, at most 16.",
        ),
    ] = ()
    weights_sha256: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9a-f]{64}$",
            max_length=64,
            description="SHA-256 of the trained weights; the same for every run of this spec, whatever its workers.",
        ),
    ] = None
    last_updated_time: Annotated[Time | None, Field(description="When the trainer last reported, in RFC 3339.")] = None


class StageRecord(Model):
    """One stage that has begun."""

    index: Annotated[Count, Field(description="Index of the stage in the plan, from 0.")]
    batch_size: Annotated[Count, Field(description="Its batch size. Unit: examples.")]
    workers: Annotated[Count, Field(description="The most workers that trained in it at once.")]
    start_time: Annotated[Time, Field(description="When it began, in RFC 3339.")]
    resize_seconds: Annotated[
        Decimal | None, Field(description="How long its workers took to come. Unit: seconds.")
    ] = None
    pause_seconds: Annotated[
        Decimal | None,
        Field(
            description="The longest time that training stood still in it for workers to join or leave. Unit: seconds."
        ),
    ] = None


class JobStatus(Model):
    """What the operator answers."""

    observed_generation: Annotated[
        LongCount, Field(description="The metadata.generation that this status is about.")
    ] = 0
    phase: Annotated[
        Phase,
        Field(description="The conditions in one word, for the eye; programs read the conditions."),
    ] = "Pending"
    start_time: Annotated[
        Time | None,
        Field(
            description="When the training first began, in RFC 3339. From then on the mathematics of the spec is "
            "immutable."
        ),
    ] = None
    completion_time: Annotated[Time | None, Field(description="When the job ended, in RFC 3339.")] = None
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            strict=False,
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            description="What holds and why, one entry for each type.",
        ),
    ] = ()
    cluster_name: Annotated[Name | None, Field(description="Name of the DaskCluster, for KubeCluster.from_name.")] = (
        None
    )
    stage: Annotated[Count | None, Field(description="Index of the present stage, from 0.")] = None
    stages: Annotated[Count | None, Field(description="Stages of the plan.")] = None
    batch: Annotated[BatchStatus | None, Field(description="The batch now and next.")] = None
    workers: Annotated[WorkersStatus | None, Field(description="The workers wanted and there.")] = None
    checkpoint: Annotated[CheckpointStatus | None, Field(description="The newest whole checkpoint.")] = None
    trainer_status: Annotated[TrainerStatus | None, Field(description="How the training goes.")] = None
    restarts: Annotated[Count, Field(description="Starts of the trainer after the first.")] = 0
    history: Annotated[
        tuple[StageRecord, ...],
        Field(
            strict=False,
            max_length=MOST_HISTORY,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
            description=f"The stages that have begun, newest last, at most {MOST_HISTORY}.",
        ),
    ] = ()

    def to_json(self) -> dict[str, Any]:
        """The status as the API server stores it; what is not known is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
