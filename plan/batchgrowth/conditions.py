"""The words of the conditions: every type and every reason, each with a sentence that says what it means."""

from __future__ import annotations

CONDITIONS = {
    "Accepted": "The spec has a plan; nothing is created before it does.",
    "ClusterReady": "The Dask cluster stands and the workers that are wanted now have joined it.",
    "Training": "The trainer commits updates.",
    "Resizing": "Workers are on their way in or out.",
    "Degraded": "The training goes on with fewer workers than the plan wants.",
    "Stalled": "No update was committed for longer than it should take.",
    "Suspended": "The job holds no workers because spec.suspend says so.",
    "Succeeded": "True when every update is done, False when the job failed, Unknown until then.",
}

HELD_UP = {
    "ReferenceMissing": "Pods need a claim, secret, config map or account that is not there; the message names it.",
    "ImagePullFailed": "A node cannot pull the image; the message is the node's.",
    "QuotaExceeded": "A quota of the namespace does not allow the pods.",
    "Unschedulable": "No node can take a pod; the message is the scheduler's.",
    "PodBroken": "A pod's container cannot start or keeps ending; the message is the node's.",
    "PodsRefused": "The API server refuses the pods; the message is its own.",
}
"""What may keep pods from running: those of the cluster, and the trainer's."""

REASONS = {
    "Accepted": {
        "PlanMade": "The plan is in the ConfigMap of the job.",
        "PlanImpossible": "The spec is well formed but has no plan; the message says why.",
        "SpecInvalid": "The spec was stored before a rule that it breaks; the message names the field.",
    },
    "ClusterReady": {
        "AllWorkersJoined": "As many workers have joined as are wanted.",
        "WaitingForWorkers": "Some workers are still starting.",
        "WaitingForScheduler": "The scheduler is still starting.",
        "DaskOperatorMissing": "Nobody answers for the DaskCluster; install the Dask operator.",
        **HELD_UP,
        "ChildRefused": "The API server refuses an object of the job; the message is its own.",
        "NameTaken": "An object that the job needs exists already and is not the job's; the message names it.",
        "Released": "The job is over or suspended, and its cluster is gone.",
    },
    "Training": {
        "UpdatesCommitted": "Updates are being committed.",
        "NotStarted": "The trainer has not committed an update yet.",
        "TrainerRestarting": "The trainer was lost and starts from its last checkpoint.",
        **HELD_UP,
        "Ended": "The trainer has ended.",
        "Paused": "spec.suspend is true.",
    },
    "Resizing": {
        "ScalingUp": "More workers were asked for, for the next stage or a new bound.",
        "ScalingDown": "Fewer workers are wanted.",
        "AtTarget": "As many workers are there as are wanted.",
    },
    "Degraded": {
        "TooFewWorkers": "Workers are missing for longer than spec.workers.waitSeconds, and at least ten seconds.",
        "FullStrength": "Nothing is missing.",
    },
    "Stalled": {
        "NoProgress": "The last update is long ago; the message says how long.",
        "ProgressSeen": "Updates come as they should.",
    },
    "Suspended": {
        "BySpec": "spec.suspend is true.",
        "Checkpointing": "The trainer writes its checkpoint before it stops.",
        "NotSuspended": "spec.suspend is false.",
    },
    "Succeeded": {
        "Finished": "Every update of the plan is done.",
        "InProgress": "The job is not over.",
        "WorkloadFailed": "The user's code failed; the message is its error.",
        "DataFailed": "The data is missing or not as declared.",
        "CheckpointFailed": "A checkpoint cannot be written or read.",
        "ManifestRefused": "The trainer refuses the job or its plan; the message is its error.",
        "RestartsExceeded": "The trainer was lost more often than spec.restarts.limit.",
        "DeadlineExceeded": "spec.activeDeadlineSeconds have passed.",
    },
}
"""Condition type -> reason -> what it means."""


def conditions_page() -> str:
    """docs/conditions.md: a table of reasons for each condition."""
    parts = [
        f"## {kind}\n\n{meaning}\n\n| reason | what it means |\n|---|---|\n"
        + "".join(f"| `{reason}` | {text} |\n" for reason, text in REASONS[kind].items())
        for kind, meaning in CONDITIONS.items()
    ]
    return (
        "# Conditions\n\nWhat `kubectl describe bgj NAME` says of a job, and what it means.\n"
        "The message beside a reason names what is missing or refused, and what would do.\n"
        "Made from `batchgrowth.conditions`; a test fails where this page differs.\n\n" + "\n".join(parts)
    )
