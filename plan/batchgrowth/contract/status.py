"""The `status` of a BatchGrowthJob, and the types and reasons of its conditions and events."""

from dataclasses import fields
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints, create_model

from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.contract.progress import LONGEST_CAUSE, MOST_DIFFERING
from batchgrowth.schema import Stored

CONDITIONS = {
    "Accepted": "The spec is valid and has a plan; otherwise the operator creates nothing.",
    "ClusterReady": "The scheduler is ready and the workers of the current stage have joined it.",
    "Training": "The trainer commits updates.",
    "Resizing": "Workers are being added or removed.",
    "Degraded": "Training goes on with fewer workers than planned for the stage, or with a worker whose arithmetic "
    "differs from the job's.",
    "Stalled": "The trainer has committed no update for longer than expected, or the job failed or is not accepted.",
    "Contested": "Another process keeps changing or deleting the job's objects against the operator.",
    "Suspended": "The job holds no workers because spec.suspend is true.",
    "Succeeded": "True when training has ended as it should, False when the job failed, Unknown until then.",
    "Complete": "True when training has ended as it should, as in a Job of Kubernetes.",
    "Failed": "True when the job failed, as in a Job of Kubernetes.",
    "Reconciling": "The operator is starting the training, or stopping it for spec.suspend.",
}

HELD_UP = {
    "ReferenceMissing": "Pods need a claim, Secret, ConfigMap or account that does not exist; the message names it.",
    "ImagePullFailed": "A node cannot pull the image; the message quotes the node.",
    "QuotaExceeded": "A quota of the namespace does not allow the pods, or the claim for the checkpoints.",
    "Unschedulable": "No node can take a pod, and the message quotes Kubernetes' scheduler; or scheduling gates hold "
    "the pod, and the message names them.",
    "VolumePending": "A claim that pods mount has no volume; the message says why if Kubernetes gives a reason.",
    "PodBroken": "A pod's container cannot start or keeps crashing; the message quotes the node.",
    "PodsRefused": "The API server refuses the pods; the message quotes it.",
}
"""Reasons that keep pods from running, the workers' and the trainer's alike."""

FLAPPING = "Flapping"
"""Reason of a condition that is good now, but counts as bad because it has turned bad again and again."""
_FLAPPING = {
    FLAPPING: "It turned bad again and again and is good now, as the message says; its status follows after five "
    "minutes."
}

REASONS = {
    "Accepted": {
        "PlanMade": "The plan is in the job's ConfigMap; with measured growth, this is the plan before any decision.",
        "PlanImpossible": "The spec is valid but has no plan; the message says why.",
        "SpecInvalid": "The stored spec breaks a rule that the API server does not check; the message names the field. "
        "Until it is corrected, the operator changes nothing: what runs goes on, even if spec.suspend is true. To stop "
        "it, delete the job.",
        "PodsNotAllowed": "The job's pods violate the installation's Pod Security Standard, or use a service account "
        "that it does not allow; the message names the field. The operator creates nothing and leaves existing workers "
        "alone.",
    },
    "ClusterReady": {
        "AllWorkersJoined": "The scheduler is ready and all workers of the current stage have joined.",
        "WaitingForWorkers": "Some workers are still starting.",
        "WaitingForScheduler": "The scheduler is still starting.",
        "DaskOperatorMissing": "The Dask operator does not process the DaskCluster; install or restart it.",
        **HELD_UP,
        **_FLAPPING,
        "NodeUnreachable": "The node of the scheduler or of a worker does not answer Kubernetes; the message names it.",
        "ChildRefused": "The API server refuses to store or delete one of the job's objects. The message names the "
        "object, quotes the refusal, and says who refuses and what helps.",
        "NameTaken": "An object that the job needs exists and belongs to another owner, or is left from an earlier job "
        "of this name; the message names it.",
        "PartsMissing": "The Dask operator has not made a part of the DaskCluster; the message names it.",
        "DeletionStuck": "One of the job's objects was deleted and stays; the message says what holds it "
        "and what to do.",
        "NamespaceTerminating": "The namespace is being deleted, so the operator makes nothing in it.",
        "Released": "The job is over or suspended and needs no cluster.",
    },
    "Training": {
        "UpdatesCommitted": "Updates are being committed.",
        "NotStarted": "The trainer has not committed an update yet.",
        "TrainerUnreachable": "The trainer's node, which the message names, does not answer. If spec.checkpoint names "
        "a place, a new trainer starts after a minute; otherwise when Kubernetes has deleted the pod, by default after "
        "five minutes.",
        "TrainerReplaced": "A new trainer starts from the last checkpoint, because the earlier trainer's node does not "
        "answer. If the earlier trainer is still alive, it ends when it finds the new one.",
        "TrainerRestarting": "The trainer was lost, or failed with an error that may pass. It restarts from its last "
        "checkpoint, or from the beginning if checkpoints are not kept; the message has its exit code and error.",
        **HELD_UP,
        "TrainerSuspended": "Another process keeps the trainer's Job suspended; the message names it if it is known.",
        **_FLAPPING,
        "Ended": "The trainer has ended.",
        "Paused": "spec.suspend is true.",
    },
    "Resizing": {
        "ScalingUp": "The operator has requested more workers, for the next stage or a new bound.",
        **HELD_UP,
        "ScalingDown": "Workers that are no longer needed are being removed.",
        **_FLAPPING,
        "AtTarget": "As many workers have joined as were requested.",
    },
    "Degraded": {
        "TooFewWorkers": "Workers have been missing for longer than spec.workers.waitSeconds and at least ten seconds, "
        "or are missing repeatedly.",
        "NodeUnreachable": "Updates go on, but a node with pods of the job does not answer Kubernetes; the message "
        "names both.",
        "ArithmeticDiffers": "A worker's arithmetic differs from the job's: it computes another digest for the job's "
        "first shard, because of its processor, its version of torch or its code. The message names the worker, its "
        "node and what differs. The worker trains only if too few others are ready, and the last bits of the weights "
        "may then differ; spec.workers.sameArithmetic: Required refuses it.",
        **_FLAPPING,
        "FullStrength": "No worker has been missing for that long, and no worker's arithmetic differs.",
    },
    "Stalled": {
        "NoProgress": "The last update was too long ago; the message says how long.",
        "ReportsStopped": "The trainer's reports have stopped, which come every ten seconds even while it waits. The "
        "message says since when and what the operator found: pods, scheduler, foreign network policies, and whether "
        "it may read the reports itself.",
        **_FLAPPING,
        "ReportRefused": "The operator ignores the trainer's report, because this job cannot have made it; the message "
        "names the field. The workload's code may have written it.",
        "JobFailed": "The job failed, and nothing will restart it; Succeeded has the cause.",
        "JobRefused": "The job is not accepted; Accepted has the cause.",
        "ProgressSeen": "Updates arrive as expected.",
    },
    "Contested": {
        "ChildRewritten": "An autoscaler, a webhook or a script keeps changing a field that the operator owns. The "
        "message names the object, the field and, if known, who changes it. The operator restores the field five times "
        "at once, then after a wait that doubles up to five minutes; changes of the job still apply at once.",
        "ChildDeleted": "Another process keeps deleting one of the job's objects; the message names it. The operator "
        "makes it again, less and less often.",
        "ChildrenKept": "Nothing keeps changing or deleting objects against the operator.",
    },
    "Suspended": {
        "BySpec": "spec.suspend is true.",
        "Checkpointing": "The trainer writes a checkpoint before it stops.",
        "Releasing": "The API server refused to delete the workers; ClusterReady says why.",
        "Discarding": "The trainer stops, and its checkpoints are lost because the job has no place for them.",
        "StateLost": "spec.suspend is true, and training will start over when the job is resumed, because its "
        "checkpoints were not kept; the message has the last update before that.",
        "NotSuspended": "spec.suspend is false.",
    },
    "Succeeded": {
        "Finished": "Every update of the plan is done.",
        "StoppedEarly": "spec.evaluation.stopEarly ended training before its last epoch; the message has the epoch and "
        "the metric.",
        "InProgress": "The job is not over.",
        "WorkloadFailed": "The workload's code failed; the message has its error.",
        "DataFailed": "The data is missing, cannot be read, or has another number of examples than the spec says.",
        "CheckpointFailed": "A checkpoint cannot be written or read, and a retry would not help; the message has the "
        "error. After a full disk the trainer retries instead.",
        "ManifestRefused": "The trainer refuses the job or its plan; the message has its error.",
        "RestartsExceeded": "The trainer was lost more often than spec.restarts.limit allows.",
        "RetriesFruitless": "The trainer ended ten times with exit code 75, which is retried, and got no further; the "
        "message is its last one.",
        "DeadlineExceeded": "The job was active for longer than spec.activeDeadlineSeconds.",
    },
    "Complete": {
        "TrainingDone": "Training has ended as it should; Succeeded says how.",
        "JobFailed": "The job failed; Succeeded has the cause.",
        "InProgress": "The job is not over.",
    },
    "Failed": {
        "JobFailed": "The job failed; Succeeded has the cause.",
        "TrainingDone": "Training has ended as it should; Succeeded says how.",
        "InProgress": "The job is not over.",
    },
    "Reconciling": {
        "TrainingAwaited": "The trainer has yet to commit an update since it was started; Training says why.",
        "SuspensionAwaited": "The trainer or the workers have yet to go; Suspended says why.",
        "Settled": "The job trains, is suspended, is over or is not accepted.",
    },
}
"""Condition type -> reason -> its meaning."""

RESTATED = ("Complete", "Failed", "Reconciling")
"""Conditions that restate the ones before them, for tools that know none of ours."""
RESTATING = {"JobFailed", "JobRefused", "TrainingDone", "TrainingAwaited", "SuspensionAwaited", "Settled"}
"""Reasons that only restate another condition."""

STAGE_BEGAN = "StageBegan"
"""Reason of the event about a new stage."""
STATUS_REFUSED = "StatusRefused"
"""Reason of the event about a status that the API server refuses."""
COMPUTED_WRONGLY = "ComputedWrongly"
"""Reason of the event about a finding in status.findings. All other events have reasons of conditions."""


# --- The `status` of a BatchGrowthJob, which the operator writes ---
# Conditions are authoritative, and `phase` is their summary.

MOST_HISTORY = 64
"""Stages kept in status.history."""
MOST_LINGERED = 20
"""Pods kept in status.retries.lingered, more than the retries that end a job."""
MOST_FINDINGS = 8
"""Findings kept in status.findings."""

Phase = Literal["Pending", "Rejected", "Training", "Resizing", "Suspended", "Stalled", "Succeeded", "Failed"]
PHASES: tuple[Phase, ...] = get_args(Phase)

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
LongCount = Annotated[int, Field(ge=0, le=2**53)]
Decimal = Annotated[str, StringConstraints(pattern=r"^-?[0-9][0-9.e+-]*$", min_length=1, max_length=32)]
Time = Annotated[str, StringConstraints(max_length=32), Field(json_schema_extra={"format": "date-time"})]
Name = Annotated[str, StringConstraints(max_length=253)]


def _list_of(most: int, description: str, key: str = "") -> Any:
    """Return the field for a list with at most that many entries, which merges by `key`, or is atomic without a key."""
    extra: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
    if key:
        extra = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return Field(strict=False, max_length=most, json_schema_extra=extra, description=description)


class Condition(Stored):
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
        "Complete",
        "Failed",
        "Reconciling",
    ] = Field(description="Its type. " + " ".join(f"{name}: {text}" for name, text in CONDITIONS.items()))
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: str = Field(
        pattern=r"^[A-Za-z]([A-Za-z0-9]*)$", min_length=1, max_length=64, description="Cause, in CamelCase."
    )
    message: str = Field("", max_length=1024, description="Cause, as a sentence for people.")
    observed_generation: LongCount = Field(0, description="The job's metadata.generation at the time.")
    last_transition_time: Time = Field(description="When the status last changed, in RFC 3339.")


class BatchStatus(Stored):
    """The batch size now and in the next stage."""

    current: Count = Field(0, description="Batch size of the current stage. Unit: examples.")
    next: Count | None = Field(
        None,
        description="Batch size of the next stage; absent in the last one. If the growth is measured, the size that "
        "the next look will probably decide; absent if that is the current size.",
    )
    next_at_epoch: Decimal | None = Field(None, description="Epoch at which the next stage begins.")


class WorkersStatus(Stored):
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


class CheckpointStatus(Stored):
    """The newest complete checkpoint."""

    update: LongCount = Field(description="Updates done when the checkpoint was taken.")
    time: Time = Field(description="When the checkpoint was written, in RFC 3339.")


class TrainerMetric(Stored):
    """One metric of the workload."""

    name: str = Field(min_length=1, max_length=64, description="Name, such as loss or accuracy.")
    value: Decimal = Field(description="Last value, as a decimal string.")


def _exchange_fields() -> dict[str, Any]:
    """Return a field for each figure of an exchange: a count, or a decimal string for a float."""
    found: dict[str, Any] = {}
    for figure in fields(ExchangeFigures):
        kind = Decimal if figure.type == float | None else LongCount
        found[figure.name] = (kind | None, Field(None, description=figure.metadata["description"]))
    return found


ExchangeStatus = create_model("ExchangeStatus", __base__=Stored, **_exchange_fields())
"""What the exchange did since the trainer's start, or lately; figures that the exchange does not have are absent."""


class TrainerStatus(Stored):
    """The training's progress, with the field names of Kubeflow's TrainJob."""

    progress_percentage: int | None = Field(
        None, ge=0, le=100, description="Share of the updates that are done. Unit: percent."
    )
    estimated_remaining_seconds: LongCount | None = Field(
        None,
        description="Time to the end at lastUpdatedTime, by the trainer's forecast, which counts the batches and "
        "workers of the stages ahead. Unit: seconds.",
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


class RetriesStatus(Stored):
    """The point from which the trainer's retries count; a run that gets no further has a limited number of them."""

    update: LongCount = Field(0, description="Most updates done so far; a restart may repeat some.")
    before: Count = Field(0, description="Trainer pods that had ended with exit code 75 when that update was reported.")
    lingered: Annotated[
        tuple[Name, ...],
        _list_of(
            MOST_LINGERED,
            "Deleted trainer pods that had ended with exit code 75: a container ran on, or nodes failed their Job.",
        ),
    ] = ()


class FlappingCondition(Stored):
    """How often a condition turned bad lately; after a few times it stays bad until it has been good for a while."""

    type: str = Field(min_length=1, max_length=64, description="Type of the condition.")
    turns: Count = Field(0, description="How often it turned bad before it was kept bad.")
    first_time: Time = Field(description="When the first of these was seen, in RFC 3339.")
    last_time: Time = Field(description="When the last of these was seen, in RFC 3339.")
    good_time: Time | None = Field(
        None, description="Since when a condition that is kept bad has been good, in RFC 3339; absent while it is bad."
    )


class FlappingStatus(Stored):
    """The conditions that turned bad lately, and the time of the last write of the conditions that are kept bad."""

    write_time: Time = Field(description="When conditions that are kept bad were last written, in RFC 3339.")
    conditions: Annotated[
        tuple[FlappingCondition, ...], _list_of(16, "The conditions that turned bad lately.", key="type")
    ] = ()


class StageRecord(Stored):
    """A stage that has begun. In a measured job the operator reads its decisions here when the report is gone."""

    index: Count = Field(description="Index of the stage in the plan, from 0.")
    batch_size: Count = Field(description="Batch size of the stage. Unit: examples.")
    workers: Count = Field(description="Most workers that trained in the stage at once.")
    first_update: LongCount | None = Field(None, description="Updates done when the stage began.")
    wanted: Count | None = Field(
        None, description="Batch size that a measured rule wanted, if it is not batchSize. Unit: examples."
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


class WrongWorker(Stored):
    """A process of the job that computed wrongly."""

    pod: Name = Field(description="Name of its pod.")
    node: Name | None = Field(
        None, description="Node of the pod, whose hardware is suspect; absent if the pod was gone already."
    )


class FindingRecord(Stored):
    """Workers that computed wrongly, as a spot check found, and the updates that were undone therefore."""

    start: LongCount = Field(description="Number of the trainer's start.")
    times: Count = Field(description="How often training had gone back since that start, this time included.")
    workers: Annotated[tuple[WrongWorker, ...], _list_of(MOST_DIFFERING, "The pods that computed wrongly.")] = ()
    cause: str = Field("", max_length=LONGEST_CAUSE, description="What differed, and in which update, as a sentence.")
    reached: LongCount = Field(description="Updates done when the check found it.")
    update: LongCount = Field(description="Updates done after going back; those up to reached were undone.")
    time: Time = Field(description="When the operator saw the finding, in RFC 3339.")


class JobStatus(Stored):
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
        None, description="Number of stages in the plan; if the growth is measured, the number decided so far."
    )
    batch: BatchStatus | None = Field(None, description="Batch size now and in the next stage.")
    workers: WorkersStatus | None = Field(None, description="Workers desired, requested and ready.")
    checkpoint: CheckpointStatus | None = Field(None, description="The newest complete checkpoint.")
    trainer_status: TrainerStatus | None = Field(None, description="Progress of the training.")
    restarts: Count = Field(0, description="Restarts of the trainer.")
    retries: RetriesStatus | None = Field(None, description="The point from which fruitless retries are counted.")
    findings: Annotated[
        tuple[FindingRecord, ...],
        _list_of(
            MOST_FINDINGS,
            f"Workers that computed wrongly, as spot checks found, the newest last, at most {MOST_FINDINGS}.",
        ),
    ] = ()
    flapping: FlappingStatus | None = Field(
        None, description="Conditions that turned bad lately; one that turns bad again and again is kept bad."
    )
    history: Annotated[
        tuple[StageRecord, ...],
        _list_of(MOST_HISTORY, f"The stages that have begun, the newest last, at most {MOST_HISTORY}."),
    ] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the status as the API server stores it; fields that are None are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
