"""The `status` of a BatchGrowthJob, which the operator writes.

Conditions are authoritative and `phase` is their summary; `batchgrowth.conditions` documents types and reasons.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints

from batchgrowth.conditions import CONDITIONS
from batchgrowth.schema.model import Model

MOST_HISTORY = 64
"""Stages kept in status.history."""

Phase = Literal["Pending", "Rejected", "Training", "Resizing", "Suspended", "Stalled", "Succeeded", "Failed"]
PHASES: tuple[Phase, ...] = get_args(Phase)

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
LongCount = Annotated[int, Field(ge=0, le=2**53)]
Decimal = Annotated[str, StringConstraints(pattern=r"^-?[0-9][0-9.e+-]*$", min_length=1, max_length=32)]
Time = Annotated[str, StringConstraints(max_length=32), Field(json_schema_extra={"format": "date-time"})]
Name = Annotated[str, StringConstraints(max_length=253)]


def _list_of(most: int, description: str, key: str = "") -> Any:
    """The field of a list of at most that many entries: a map by `key`, or atomic without one."""
    extra: dict[str, Any] = {"x-kubernetes-list-type": "map" if key else "atomic"}
    extra |= {"x-kubernetes-list-map-keys": [key]} if key else {}
    return Field(strict=False, max_length=most, json_schema_extra=extra, description=description)


class Condition(Model):
    """One condition, in the form of metav1.Condition."""

    type: Literal[
        "Accepted",
        "ClusterReady",
        "Training",
        "Resizing",
        "Degraded",
        "Stalled",
        "Contested",
        "Suspended",
        "Succeeded",
    ] = Field(description="Its type. " + " ".join(f"{name}: {text}" for name, text in CONDITIONS.items()))
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: str = Field(
        pattern=r"^[A-Za-z]([A-Za-z0-9]*)$", min_length=1, max_length=64, description="Cause, in CamelCase."
    )
    message: str = Field("", max_length=1024, description="Cause, as a sentence for people.")
    observed_generation: LongCount = Field(0, description="The job's metadata.generation at the time.")
    last_transition_time: Time = Field(description="When the status last changed, in RFC 3339.")


class BatchStatus(Model):
    """The batch size now and in the next stage."""

    current: Count = Field(0, description="Batch size of the current stage. Unit: examples.")
    next: Count | None = Field(
        None,
        description="Batch size of the next stage; absent in the last one. If the growth is measured, what the next "
        "look will probably decide; absent if that is no other batch.",
    )
    next_at_epoch: Decimal | None = Field(None, description="Epoch at which the next stage begins.")


class WorkersStatus(Model):
    """The numbers of workers desired, requested and ready."""

    desired: Count = Field(0, description="Workers that the plan gives the current stage.")
    requested: Count = Field(0, description="Replicas of the Deployment; more ahead of a milestone.")
    requested_time: Time | None = Field(None, description="When requested last changed, in RFC 3339.")
    resize_seconds: Decimal | None = Field(
        None, description="Time from the last request of workers until all had joined. Unit: seconds."
    )
    lead_seconds: Decimal | None = Field(None, description="Smoothed start-up time of workers. Unit: seconds.")
    ready: Count = Field(0, description="Workers that have joined the cluster.")
    selector: str = Field("", max_length=253, description="Label selector of the worker pods.")


class CheckpointStatus(Model):
    """The newest complete checkpoint."""

    update: LongCount = Field(description="Updates done when the checkpoint was taken.")
    time: Time = Field(description="When the checkpoint was written, in RFC 3339.")


class TrainerMetric(Model):
    """One metric of the workload."""

    name: str = Field(min_length=1, max_length=64, description="Name, such as loss or accuracy.")
    value: Decimal = Field(description="Last value, as a decimal string.")


class ExchangeStatus(Model):
    """What the exchange did since the trainer's start, or lately; absent is what the exchange does not have."""

    bytes_sent: LongCount | None = Field(
        None, description="Bytes that the workers have sent each other since the trainer's start."
    )
    compression_error: Decimal | None = Field(
        None,
        description="Part of its norm by which exchange.compression changed a sum of gradients, or that exchange TopK "
        "left for later.",
    )
    replica_distance: Decimal | None = Field(
        None, description="Root mean square distance of the logical replicas from their mean."
    )
    largest_staleness: LongCount | None = Field(
        None, description="Most updates made between the fetch of a gradient's weights and its push, in the last round."
    )
    mean_staleness: Decimal | None = Field(None, description="Their mean.")
    backups: LongCount | None = Field(
        None, description="Parts of updates that an idle worker repeated since the trainer's start."
    )
    backups_first: LongCount | None = Field(None, description="Those of them whose backup came first.")


class TrainerStatus(Model):
    """The training's progress, with the field names of Kubeflow's TrainJob."""

    progress_percentage: int | None = Field(
        None, ge=0, le=100, description="Share of the updates that are done. Unit: percent."
    )
    estimated_remaining_seconds: LongCount | None = Field(
        None, description="Time to the end at the current pace. Unit: seconds."
    )
    epoch: Decimal | None = Field(None, description="Epochs done, with the current one's fraction.")
    start: LongCount | None = Field(None, description="Number of the trainer's start, from 0; a restart increments it.")
    update: LongCount | None = Field(None, description="Updates done.")
    loss: Decimal | None = Field(None, description="Training loss in the last report, per example.")
    metrics: Annotated[
        tuple[TrainerMetric, ...], _list_of(16, "Last values of the workload's metrics, at most 16.", key="name")
    ] = ()
    weights_sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        max_length=64,
        description="SHA-256 of the weights; independent of the workers.",
    )
    exchange: ExchangeStatus | None = Field(None, description="What the exchange between the workers did.")
    last_updated_time: Time | None = Field(None, description="When the trainer last reported, in RFC 3339.")


class RetriesStatus(Model):
    """What the trainer's retries are counted from: those of a run that gets no further are limited."""

    update: LongCount = Field(0, description="Most updates done so far; a restart may repeat some.")
    before: Count = Field(0, description="Trainer pods that had ended with exit code 75 when that update was reported.")


class FlappingCondition(Model):
    """How often a condition turned bad lately; after a few times it stays bad until it has been good for a while."""

    type: str = Field(min_length=1, max_length=64, description="Type of the condition.")
    turns: Count = Field(0, description="Times that it turned bad; those after it is kept bad do not count.")
    first_time: Time = Field(description="When the first of these was seen, in RFC 3339.")
    last_time: Time = Field(description="When the last of these was seen, in RFC 3339.")
    good_time: Time | None = Field(
        None, description="Since when a condition that is kept bad has been good, in RFC 3339; absent while it is bad."
    )


class FlappingStatus(Model):
    """The conditions that turned bad lately, and when those that are kept bad were last written."""

    write_time: Time = Field(description="When conditions that are kept bad were last written, in RFC 3339.")
    conditions: Annotated[
        tuple[FlappingCondition, ...], _list_of(16, "The conditions that turned bad lately.", key="type")
    ] = ()


class StageRecord(Model):
    """A stage that has begun. In a measured job the operator reads its decisions here when the report is gone."""

    index: Count = Field(description="Index of the stage in the plan, from 0.")
    batch_size: Count = Field(description="Batch size of the stage. Unit: examples.")
    workers: Count = Field(description="Most workers that trained in the stage at once.")
    first_update: LongCount | None = Field(None, description="Updates done when the stage began.")
    wanted: Count | None = Field(
        None, description="Batch size that a measured rule wanted, if not batchSize. Unit: examples."
    )
    measured: Decimal | None = Field(
        None, description="Measured value that decided the stage; absent if it is too large to measure."
    )
    start_time: Time = Field(description="When the stage began, in RFC 3339.")
    resize_seconds: Decimal | None = Field(
        None, description="Time until the workers of the stage had joined. Unit: seconds."
    )
    pause_seconds: Decimal | None = Field(
        None, description="Longest pause while workers joined or left. Unit: seconds."
    )


class JobStatus(Model):
    """The status of a job."""

    observed_generation: LongCount = Field(0, description="The metadata.generation described here.")
    phase: Phase = Field(
        "Pending", description="The conditions in one word, for people. Rejected: the spec is invalid or has no plan."
    )
    start_time: Time | None = Field(
        None,
        description="When the job first started, in RFC 3339; since then the mathematics of the spec is immutable.",
    )
    completion_time: Time | None = Field(None, description="When the job ended, in RFC 3339.")
    conditions: Annotated[
        tuple[Condition, ...], _list_of(16, "The job's state and its causes, one entry for each type.", key="type")
    ] = ()
    cluster_name: Name | None = Field(None, description="DaskCluster, for KubeCluster.from_name.")
    stage: Count | None = Field(None, description="Index of the current stage, from 0.")
    stages: Count | None = Field(
        None, description="Number of stages in the plan; if the growth is measured, those decided so far."
    )
    batch: BatchStatus | None = Field(None, description="Batch size now and in the next stage.")
    workers: WorkersStatus | None = Field(None, description="Workers desired, requested and ready.")
    checkpoint: CheckpointStatus | None = Field(None, description="The newest complete checkpoint.")
    trainer_status: TrainerStatus | None = Field(None, description="Progress of the training.")
    restarts: Count = Field(0, description="Restarts of the trainer.")
    retries: RetriesStatus | None = Field(None, description="What fruitless retries are counted from.")
    flapping: FlappingStatus | None = Field(
        None, description="Conditions that turned bad lately: those that do again and again are kept bad."
    )
    history: Annotated[
        tuple[StageRecord, ...],
        _list_of(MOST_HISTORY, f"The stages that have begun, the newest last, at most {MOST_HISTORY}."),
    ] = ()

    def to_json(self) -> dict[str, Any]:
        """The status as the API server stores it, without unknown values."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
