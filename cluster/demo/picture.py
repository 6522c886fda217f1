"""The live view: the stages, where the job is, and what happened lately."""

from __future__ import annotations

from datetime import datetime

from batchgrowth.status import JobStatus
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cluster.demo import words
from cluster.demo.seen import Event, Seen
from cluster.demo.stages import Row, rows

MOST_EVENTS = 6
MOST_WORKERS_DRAWN = 40
MARKS = {"done": ("✓", "green"), "now": ("▶", "bold cyan"), "failed": ("✗", "bold red"), "to come": (" ", "dim")}
COLOURS = {"Succeeded": "bold green", "Failed": "bold red", "Stalled": "bold red", "Training": "bold cyan"}
COLUMNS = ("stage", "epochs", "batch", "workers", "began at", "lasted", "came in", "pause")


def picture(seen: Seen, now: datetime, trouble: str = "") -> RenderableType:
    """Everything about the job that fits a screen."""
    parts = [_title(seen, now), Text(), stage_table(seen, now), Text(), _progress(seen.status), _numbers(seen.status)]
    return Group(*parts, Text(), _events(seen.events, now), Text(trouble, style="yellow"))


def stage_table(seen: Seen, now: datetime) -> Table:
    """One row per stage."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for row in rows(seen, now):
        mark, style = MARKS[row.state]
        table.add_row(mark, *_cells(row), style=style if row.state != "done" else "")
    return table


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.stage.index),
        row.epochs,
        f"{row.stage.batch_size:,}",
        str(row.stage.workers if row.workers is None else row.workers),
        words.seconds(row.began),
        words.seconds(row.lasted),
        words.seconds(row.came),
        words.pause(row.pause),
    )


def _title(seen: Seen, now: datetime) -> Text:
    since = words.seconds(((seen.ended or now) - seen.applied).total_seconds())
    phase = seen.status.phase
    return Text.assemble(
        (seen.name, "bold"),
        (f"  in the namespace {seen.namespace}, {since} after apply  ", "dim"),
        (phase, COLOURS.get(phase, "bold yellow")),
        (_waiting(seen.status), "yellow"),
    )


def _waiting(status: JobStatus) -> str:
    """Why nothing is trained yet, in the operator's own words."""
    if status.phase not in {"Pending", "Stalled", "Failed"}:
        return ""
    told = {c.type: c for c in status.conditions}
    order = ("Succeeded", "Stalled") if status.phase != "Pending" else ("Accepted", "ClusterReady", "Training")
    bad = [
        told[kind] for kind in order if kind in told and told[kind].status != ("False" if kind == "Stalled" else "True")
    ]
    return f"  {bad[0].reason}: {bad[0].message}" if bad else ""


def _progress(status: JobStatus) -> RenderableType:
    told = status.trainer_status
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    done = (told.progress_percentage if told else None) or 0
    bar.add_row(
        ProgressBar(total=100, completed=done, complete_style="cyan", finished_style="green"),
        Text(words.left(status)),
    )
    return bar


def _numbers(status: JobStatus) -> RenderableType:
    batch, told = status.batch, status.workers
    text = Text(words.numbers(status))
    if batch is not None:
        text.append(f"\nbatch {batch.current:,}", style="bold")
        if batch.next is not None:
            text.append(f", {batch.next:,} from epoch {batch.next_at_epoch}", style="dim")
    if told is not None:
        ready, wanted = min(told.ready, MOST_WORKERS_DRAWN), min(max(told.requested, told.ready), MOST_WORKERS_DRAWN)
        text.append("   workers ", style="bold")
        text.append("●" * ready, style="green")
        text.append("○" * (wanted - ready), style="yellow")
        text.append(f" {words.workers(status)}", style="dim")
    return text


def _events(events: tuple[Event, ...], now: datetime) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for event in events[-MOST_EVENTS:]:
        ago = max(0.0, (now - event.at).total_seconds())
        table.add_row(
            f"{words.seconds(ago)} ago", Text(event.reason, style="red" if event.warning else "cyan"), event.message
        )
    return table
