"""What the dashboard of a job shows, row by row."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models.common import LineInterpolation, StackingMode

from charts.panels import Panel, Query, bars, dial, lines, number
from charts.queries import age, latest, mean, pace, progress, quantiles

NOW: tuple[Panel, ...] = (
    dial(
        "Progress",
        "Fraction of the plan's updates that are done.",
        "percentunit",
        Query(progress(), "progress"),
    ).max(1),
    number(
        "Epochs",
        "Epochs done, with the fraction of the current one.",
        "none",
        Query(latest("batchgrowth_epochs"), "epochs"),
    ).decimals(2),
    number(
        "Stage",
        "Index of the current stage of the plan, from 0.",
        "none",
        Query(latest("batchgrowth_stage"), "stage"),
    ),
    number(
        "Learning rate",
        "Learning rate of the last update.",
        "none",
        Query(latest("batchgrowth_learning_rate"), "learning rate"),
    ),
    number(
        "Since the last update",
        "Time since the trainer last committed an update; it stops counting when the job ends.",
        "s",
        Query(age("batchgrowth_last_progress_timestamp_seconds"), "since the last update"),
        limits=((60, "yellow"), (600, "red")),
    ),
    number(
        "Updates repeated",
        "Updates repeated after a worker was lost, since the trainer started.",
        "none",
        Query(latest("batchgrowth_recoveries_total"), "repeated"),
    ),
)
LEARNING: tuple[Panel, ...] = (
    lines(
        "Loss and accuracy",
        "Training loss per example and the loss of the last evaluation; on the right the workload's other metrics, "
        "such as accuracy.",
        "none",
        Query(latest("batchgrowth_loss"), "loss in training"),
        Query(latest("batchgrowth_evaluation", "metric", metric='="loss'), "{{metric}} in evaluation"),
        Query(latest("batchgrowth_evaluation", "metric", metric='!="loss'), "{{metric}}", "none"),
    ),
    lines(
        "Measured growth",
        "What a measured growth rule saw at its last look, such as the noise scale; empty for a declared growth.",
        "none",
        Query(latest("batchgrowth_growth_quantity", "quantity"), "{{quantity}}"),
    ),
    lines(
        "Batch and workers",
        "The batch grows by the plan and the workers follow it; on the right the workers that the plan wants and those "
        "in the group.",
        "none",
        Query(latest("batchgrowth_batch_size"), "examples in the batch"),
        Query(latest("batchgrowth_workers", "state"), "workers {{state}}", "none"),
    )
    .decimals(0)
    .line_interpolation(LineInterpolation.STEP_AFTER),
)
FORECAST: tuple[Panel, ...] = (
    lines(
        "Time left",
        "Time to the end of the run by the model of the forecast, fitted to its updates so far, with an interval that "
        "should contain 9 in 10 runs. It counts the batches and workers of later stages; if the forecast is right, it "
        "falls by a second each second.",
        "s",
        Query(latest("batchgrowth_remaining_seconds", "bound"), "{{bound}}"),
    ),
    lines(
        "Forecast against actual",
        "Mean time of one update, and what the model of the forecast says of the current stage. The forecast includes "
        "its share of evaluations; otherwise, if the two differ, the time left is wrong by as much.",
        "s",
        Query(latest("batchgrowth_update_forecast_seconds"), "forecast"),
        Query(
            f"{pace('batchgrowth_update_duration_seconds_sum', over=('part',))} / {pace('batchgrowth_updates_total')}",
            "actual",
        ),
    ),
)
SPEED: tuple[Panel, ...] = (
    lines(
        "Examples per second",
        "Examples used per second, over all workers.",
        "suffix: examples/s",
        Query(pace("batchgrowth_examples_total"), "examples"),
    ),
    lines(
        "Time of an update by part",
        "Mean time of one update, stacked by part: computing gradients, exchanging them, waiting for other workers.",
        "s",
        Query(mean("batchgrowth_update_duration_seconds", "part"), "{{part}}"),
    )
    .fill_opacity(40)
    .stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A")),
    lines(
        "Bytes exchanged per second",
        "Bytes that the workers send to each other per second.",
        "Bps",
        Query(pace("batchgrowth_exchange_bytes_total"), "sent"),
    ),
    lines(
        "Distance, staleness and compression",
        "How far the weights of logical replicas are from their mean, 0 if the exchange has no replicas of its own; on "
        "the right how many updates Downpour made between the fetch of a gradient's weights and its push, and by how "
        "much of its norm compression changed a sum of gradients.",
        "none",
        Query(latest("batchgrowth_replica_distance"), "distance"),
        Query(latest("batchgrowth_staleness", "statistic"), "{{statistic}} staleness", "none"),
        Query(latest("batchgrowth_compression_error_ratio"), "compression error", "percentunit"),
    ),
)
PAUSES: tuple[Panel, ...] = (
    bars(
        "Pauses",
        "How long training paused while workers joined (up) or left (down), since the trainer started.",
        "s",
        *quantiles("batchgrowth_resize_duration_seconds", "direction"),
        limits=((0.25, "yellow"), (2, "red")),
    ),
    bars(
        "Time to write a checkpoint",
        "How long it took to write a checkpoint, since the trainer started.",
        "s",
        *quantiles("batchgrowth_checkpoint_duration_seconds"),
        limits=((15, "yellow"), (60, "red")),
    ),
    lines(
        "Backups",
        "Parts of updates that an idle worker repeated because another was slow, since the trainer started, by the "
        "copy that came first; 0 unless exchange.gatherScatter.backups is true.",
        "none",
        Query(latest("batchgrowth_backups_total", "first"), "{{first}} first"),
    ),
    lines(
        "Checks of the workers",
        "Checks in which all workers computed the same shard, since the trainer started, by whether they got the same "
        "bits. A worker that got others computes wrongly, and is replaced; 0 with verify: false. On the right the "
        "updates done at the newest check that found no difference.",
        "none",
        Query(latest("batchgrowth_checks_total", "result"), "{{result}}"),
        Query(latest("batchgrowth_checked_updates"), "updates covered", "none"),
    ),
)
CHECKPOINTS: tuple[Panel, ...] = (
    lines(
        "Age of the checkpoint",
        "Time since the newest checkpoint was completed: the most training that a crash can cost.",
        "s",
        Query(age("batchgrowth_checkpoint_last_success_timestamp_seconds"), "since a checkpoint"),
    ),
    lines(
        "Size of the checkpoint",
        "Size of the newest checkpoint.",
        "bytes",
        Query(latest("batchgrowth_checkpoint_size_bytes"), "size"),
    ),
    lines(
        "Checkpoints that failed",
        "Checkpoints that could not be written, since the trainer started.",
        "none",
        Query(latest("batchgrowth_checkpoint_failures_total"), "failed"),
    )
    .decimals(0)
    .line_interpolation(LineInterpolation.STEP_AFTER),
)
ROWS = ((5, NOW), (10, LEARNING), (8, FORECAST), (9, SPEED), (8, PAUSES), (7, CHECKPOINTS))
"""(height, panels of the same width) of each row; Grafana's grid has 24 columns."""
