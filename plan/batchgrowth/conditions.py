"""The types and reasons of conditions and events, each with a sentence that explains it."""

CONDITIONS = {
    "Accepted": "The spec is valid and has a plan; without one nothing is created.",
    "ClusterReady": "The scheduler is ready and the workers of the current stage have joined it.",
    "Training": "The trainer commits updates.",
    "Resizing": "Workers are being added or removed.",
    "Degraded": "The training goes on with fewer workers than the plan gives the stage, or with one that adds "
    "differently than the job.",
    "Stalled": "No update was committed for longer than expected.",
    "Contested": "Another process changes a field of the job's objects again and again, against the operator.",
    "Suspended": "The job holds no workers because spec.suspend is true.",
    "Succeeded": "True when training has ended as it should, False when the job failed, Unknown until then.",
}

HELD_UP = {
    "ReferenceMissing": "Pods need a claim, secret, config map or account that does not exist; the message names it.",
    "ImagePullFailed": "A node cannot pull the image; the message is the node's.",
    "QuotaExceeded": "A quota of the namespace does not allow the pods, or the claim for the checkpoints.",
    "Unschedulable": "No node can take a pod; the message is the scheduler's.",
    "VolumePending": "A claim that pods mount has no volume; the message says why, if Kubernetes does.",
    "PodBroken": "A pod's container cannot start or keeps crashing; the message is the node's.",
    "PodsRefused": "The API server refuses the pods; the message is its own.",
}
"""Reasons that keep pods from running, the workers' and the trainer's alike."""

REASONS = {
    "Accepted": {
        "PlanMade": "The plan is in the job's ConfigMap; if the growth is measured, the one without decisions.",
        "PlanImpossible": "The spec is valid but has no plan; the message says why.",
        "SpecInvalid": "The stored spec breaks a rule that the API server does not check; the message names the field.",
        "PodsNotAllowed": "The workers' pods break the Pod Security Standard of the installation, or use a service "
        "account that it does not allow; the message names the field. Nothing is created; workers that exist stay as "
        "they are.",
    },
    "ClusterReady": {
        "AllWorkersJoined": "The scheduler is ready and all workers of the current stage have joined.",
        "WaitingForWorkers": "Some workers are still starting.",
        "WaitingForScheduler": "The scheduler is still starting.",
        "DaskOperatorMissing": "The Dask operator does not process the DaskCluster; install or restart it.",
        **HELD_UP,
        "ChildRefused": "The API server refuses to store or to delete an object of the job; the message is its own.",
        "NameTaken": "An object that the job needs exists and belongs to another owner; the message names it.",
        "Released": "The job is over or suspended and needs no cluster.",
    },
    "Training": {
        "UpdatesCommitted": "Updates are being committed.",
        "NotStarted": "The trainer has not committed an update yet.",
        "TrainerUnreachable": "The node of the trainer's pod, which the message names, does not answer. After a minute "
        "another trainer takes its place if spec.checkpoint says where checkpoints are kept, otherwise once Kubernetes "
        "has deleted the pod, by default after five minutes.",
        "TrainerReplaced": "Another trainer starts from the last checkpoint, since the node of the one before does not "
        "answer. If that one still works, it ends when it meets its successor.",
        "TrainerRestarting": "The trainer was lost, or ended by an error that may pass, and restarts from its last "
        "checkpoint, or from the beginning if nothing keeps checkpoints; the message has its exit code and error.",
        **HELD_UP,
        "Ended": "The trainer has ended.",
        "Paused": "spec.suspend is true.",
    },
    "Resizing": {
        "ScalingUp": "More workers were requested, for the next stage or a new bound.",
        "ScalingDown": "Workers that are no longer needed are being removed.",
        "AtTarget": "As many workers have joined as were requested.",
    },
    "Degraded": {
        "TooFewWorkers": "Workers are missing for longer than spec.workers.waitSeconds and at least ten seconds, or "
        "again and again.",
        "ArithmeticDiffers": "A worker adds differently than the job, because of its processor, its version of torch "
        "or its code: the first shard of the job has another digest there. The message names the worker, its node and "
        "what differs. It trains if too few others are ready, and the weights may end with other last bits; "
        "spec.workers.sameArithmetic: Required refuses it.",
        "FullStrength": "No worker has been missing for that long, and none adds differently.",
    },
    "Stalled": {
        "NoProgress": "The last update is too long ago; the message says how long.",
        "ReportRefused": "The trainer's report is not one that this job can make, so it is not used; the message names "
        "the field. Code of the workload may have written it.",
        "ProgressSeen": "Updates arrive as expected.",
    },
    "Contested": {
        "ChildRewritten": "An autoscaler, a webhook or a script changes a field that the operator owns again and "
        "again. The message names the object, the field, and the other if the object does. The operator puts the field "
        "back five times at once, then after a wait that doubles up to five minutes; changes of the job apply at once.",
        "ChildrenKept": "No field is changed again and again.",
    },
    "Suspended": {
        "BySpec": "spec.suspend is true.",
        "Checkpointing": "The trainer writes a checkpoint before it stops.",
        "Releasing": "The API server refused to delete the workers; ClusterReady says why.",
        "Discarding": "The trainer stops, and nothing keeps its checkpoints.",
        "StateLost": "spec.suspend is true, and the training, whose checkpoints nothing kept, starts over when the job "
        "is resumed; the message has the update that was lost.",
        "NotSuspended": "spec.suspend is false.",
    },
    "Succeeded": {
        "Finished": "Every update of the plan is done.",
        "StoppedEarly": "By spec.evaluation.stopEarly, training ended before its last epoch; the message has the epoch "
        "and the metric.",
        "InProgress": "The job is not over.",
        "WorkloadFailed": "The user's code failed; the message is its error.",
        "DataFailed": "The data is missing or differs from its declaration.",
        "CheckpointFailed": "A checkpoint cannot be written or read, and a retry would not help; the message is the "
        "error. A full disk is retried instead.",
        "ManifestRefused": "The trainer refuses the job or its plan; the message is its error.",
        "RestartsExceeded": "The trainer was lost more often than spec.restarts.limit allows.",
        "RetriesFruitless": "The trainer ended ten times with exit code 75, which is retried, without getting any "
        "further; the message is its last.",
        "DeadlineExceeded": "The job was active for longer than spec.activeDeadlineSeconds.",
    },
}
"""Condition type -> reason -> its meaning."""

STAGE_BEGAN = "StageBegan"
"""Reason of the event about a new stage."""
STATUS_REFUSED = "StatusRefused"
"""Reason of the event about a status that the API server refuses. All other events have the reasons of conditions."""
