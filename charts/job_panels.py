"""What the dashboard of a job shows, row by row."""

from __future__ import annotations

from charts.panels import Panel, Query
from charts.queries import age, latest, mean, pace, quantiles

NOW = (
    Panel(
        title="Progress",
        description="Part of the plan's updates that is done.",
        unit="percentunit",
        kind="gauge",
        width=4,
        maximum=1,
        queries=(Query(latest("batchgrowth_progress_ratio"), "progress"),),
    ),
    Panel(
        title="Epochs",
        description="Epochs done, with the part of the present one.",
        unit="none",
        kind="stat",
        width=4,
        decimals=2,
        queries=(Query(latest("batchgrowth_epochs"), "epochs"),),
    ),
    Panel(
        title="Stage",
        description="Index of the present stage of the plan, from 0.",
        unit="none",
        kind="stat",
        width=4,
        queries=(Query(latest("batchgrowth_stage"), "stage"),),
    ),
    Panel(
        title="Learning rate",
        description="Learning rate of the last update.",
        unit="none",
        kind="stat",
        width=4,
        queries=(Query(latest("batchgrowth_learning_rate"), "learning rate"),),
    ),
    Panel(
        title="Since the last update",
        description="Time since the trainer last committed an update; it stands still when the job is over.",
        unit="s",
        kind="stat",
        width=4,
        limits=((60, "yellow"), (600, "red")),
        queries=(Query(age("batchgrowth_last_progress_timestamp_seconds"), "since the last update"),),
    ),
    Panel(
        title="Updates done again",
        description="Updates that were done again because a worker was lost, since the trainer started.",
        unit="none",
        kind="stat",
        width=4,
        queries=(Query(latest("batchgrowth_recoveries_total"), "done again"),),
    ),
)
LEARNING = (
    Panel(
        title="Loss and accuracy",
        description="Training loss per example and the loss of the last evaluation; on the right the other metrics of "
        "the workload, such as the accuracy.",
        unit="none",
        width=12,
        queries=(
            Query(latest("batchgrowth_loss"), "loss in training"),
            Query(latest("batchgrowth_evaluation", "metric", metric='="loss'), "{{metric}} in evaluation"),
            Query(latest("batchgrowth_evaluation", "metric", metric='!="loss'), "{{metric}}", "none"),
        ),
    ),
    Panel(
        title="Batch and workers",
        description="The batch grows by the plan, and the workers follow it: on the right those that the plan wants "
        "and those in the group.",
        unit="none",
        width=12,
        decimals=0,
        custom={"lineInterpolation": "stepAfter"},
        queries=(
            Query(latest("batchgrowth_batch_size"), "examples in the batch"),
            Query(latest("batchgrowth_workers", "state"), "workers {{state}}", "none"),
        ),
    ),
)
SPEED = (
    Panel(
        title="Examples per second",
        description="Examples used per second, over all workers.",
        unit="ops",
        queries=(Query(pace("batchgrowth_examples_total"), "examples"),),
    ),
    Panel(
        title="Time of an update by part",
        description="Mean time of one update, stacked by what it was spent on: computing gradients, exchanging them, "
        "waiting for others.",
        unit="s",
        custom={"fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}},
        queries=(Query(mean("batchgrowth_update_duration_seconds", "part"), "{{part}}"),),
    ),
    Panel(
        title="Bytes exchanged per second",
        description="What the workers send to each other per second.",
        unit="Bps",
        queries=(Query(pace("batchgrowth_exchange_bytes_total"), "sent"),),
    ),
)
PAUSES = (
    Panel(
        title="Pauses",
        description="How long the training stood still when workers joined (up) or left (down), since the trainer "
        "started.",
        unit="s",
        kind="bargauge",
        width=12,
        limits=((0.25, "yellow"), (2, "red")),
        queries=quantiles("batchgrowth_resize_duration_seconds", "direction"),
    ),
    Panel(
        title="Time to write a checkpoint",
        description="How long it took to write a checkpoint, since the trainer started.",
        unit="s",
        kind="bargauge",
        width=12,
        limits=((15, "yellow"), (60, "red")),
        queries=quantiles("batchgrowth_checkpoint_duration_seconds"),
    ),
)
CHECKPOINTS = (
    Panel(
        title="Age of the checkpoint",
        description="Time since the newest checkpoint was whole: as much would have to be done again.",
        unit="s",
        queries=(Query(age("batchgrowth_checkpoint_last_success_timestamp_seconds"), "since a checkpoint"),),
    ),
    Panel(
        title="Size of the checkpoint",
        description="Size of the newest checkpoint.",
        unit="bytes",
        queries=(Query(latest("batchgrowth_checkpoint_size_bytes"), "size"),),
    ),
    Panel(
        title="Checkpoints that failed",
        description="Checkpoints that could not be written, since the trainer started.",
        unit="none",
        decimals=0,
        custom={"lineInterpolation": "stepAfter"},
        queries=(Query(latest("batchgrowth_checkpoint_failures_total"), "failed"),),
    ),
)
ROWS = ((5, NOW), (10, LEARNING), (9, SPEED), (8, PAUSES), (7, CHECKPOINTS))
