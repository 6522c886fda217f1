"""The results of `python -m bench`: the tables, and the targets that they meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from bench.cases import ENCRYPTED, MEASURING, OUR_GATHER, OUR_LOADERS, OUR_ONE, OUR_REDUCE
from bench.checks import Checks
from bench.cs744 import show_tasks
from bench.epoch_ends import EpochEnds
from bench.pauses import Pauses
from bench.rounds import Measured
from bench.starts import Starts
from bench.tables import about, between, cells, percentile, show, spread

WRN_BYTES = 23e6
"""The target for what AllReduce sends in an update of wrn-64, in bytes."""
EPOCH_END_SECONDS = 5e-3
PAUSE_SECONDS = 0.25
SAFEGUARD_SECONDS = 0.5
"""What each safeguard may add to a start."""
CHECK_SHARES = {"mlp-64": 0.03, "wrn-64": 0.01}
"""The share of the time that spot checks may take, by case."""
TIMES = (
    (OUR_REDUCE, "mlp-64", 1.3),
    (OUR_REDUCE, "mlp-512", 1.3),
    (OUR_REDUCE, "wrn-64", 1.0),
    (OUR_REDUCE, "all-vgg11-256", 1.0),
    (MEASURING, "measuring-mlp-64", 1.05),
    (MEASURING, "measuring-wrn-64", 1.03),
    (ENCRYPTED, "encrypted-mlp-64", 1.25),
    (ENCRYPTED, "encrypted-wrn-64", 1.05),
    (OUR_REDUCE, "guarded-mlp-64", 1.03),
    (OUR_GATHER, "guarded-gather-mlp-64", 1.03),
    (OUR_ONE, "alone-mlp-64", 1.3),
    (OUR_ONE, "alone-digits-64", 1.05),
    (OUR_ONE, "alone-wrn-32", 1.05),
    (OUR_LOADERS, "loading-images-32", 1 / 0.95),
)
"""(system, case, its time at most as a multiple of that of the case's first system)."""


@dataclass(frozen=True, slots=True)
class Results:
    """All results; `quick` figures only show that everything runs."""

    quick: bool
    cases: list[Measured]
    pauses: list[Pauses] = field(default_factory=list)
    epoch_ends: list[EpochEnds] = field(default_factory=list)
    starts: list[Starts] = field(default_factory=list)
    checks: list[Checks] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Target:
    """A promise about speed, its measured value, and whether it was met."""

    promise: str
    measured: str
    met: bool


def targets(results: Results) -> Iterator[Target]:
    """Yield the promises about speed that were measured."""
    figures = {(one.case, figures.system): figures for one in results.cases for figures in one.figures}
    firsts = {one.case: one.figures[0].system for one in results.cases}
    for system, case, most in TIMES:
        if (case, system) in figures:
            ratio = figures[case, system].ratio
            promise = f"{system} at most {most:.3g} times {firsts[case]}, {case}"
            yield Target(promise, between(ratio, 3), ratio.middle <= most)
    if ("wrn-64", OUR_REDUCE) in figures:
        sent = figures["wrn-64", OUR_REDUCE].sent
        yield Target(f"AllReduce moves at most {WRN_BYTES / 1e6:g} MB, wrn-64", _size(sent), sent <= WRN_BYTES)
    for starts in results.starts:
        added = spread(starts.added)
        promise = f"at most {SAFEGUARD_SECONDS:g} s more of a start: {starts.what}"
        yield Target(promise, f"{between(added, 3)} s", added.middle <= SAFEGUARD_SECONDS)
    for checks in results.checks:
        share = spread(checks.shares)
        most = CHECK_SHARES[checks.case]
        shown = f"{share.middle:.2%} ({share.least:.2%} to {share.most:.2%}) over {len(checks.costs)} checks"
        yield Target(f"spot checks at most {most:.0%} of the time, {checks.case}", shown, share.middle <= most)
    for ends in results.epoch_ends:
        promise = f"an epoch's end at most {EPOCH_END_SECONDS * 1e3:g} ms, {ends.case}, {ends.examples:,} examples"
        cost = median(ends.costs)
        yield Target(promise, f"{cost * 1e3:.2f} ms over {len(ends.costs)} ends", cost <= EPOCH_END_SECONDS)
    pauses = [pause for one in results.pauses if not one.verify for pause in (*one.joins, *one.leaves)]
    if pauses:
        p95 = percentile(pauses, 95)
        promise = f"95 of 100 pauses at most {PAUSE_SECONDS:g} s, warm, without verify"
        yield Target(promise, f"{p95 * 1e3:.0f} ms over {len(pauses)} resizes", p95 <= PAUSE_SECONDS)


def show_results(results: Results) -> None:
    """Print all tables, the targets last."""
    print(about(quick=results.quick))
    for case in results.cases:
        _show_case(case)
    show_tasks(results.cases)
    if results.starts:
        rows = []
        for start in results.starts:
            seconds = [spread(part) for part in (start.without, start.with_it, start.added)]
            rows.append([start.what, *(cell for part in seconds for cell in cells(part, 3))])
        parts = ("without: min", "median", "max", "with it: min", "median", "max", "added: min", "median", "max")
        show("Safeguards at a start, in seconds", ("safeguard", *parts), rows)
    if results.checks:
        rows = []
        for checks in results.checks:
            costs = cells(spread([1e3 * cost for cost in checks.costs]), 2)
            numbers = [str(len(checks.costs)), str(checks.every), f"{1e3 * checks.update:.2f}"]
            rows.append([checks.case, *numbers, *costs, f"{spread(checks.shares).middle:.2%}"])
        columns = [
            "two workers",
            "checks",
            "updates from one to the next",
            "an update",
            "a check: min",
            "median",
            "max",
        ]
        show("Spot checks, in ms", [*columns, "share of the time"], rows)
    if results.epoch_ends:
        rows = []
        for ends in results.epoch_ends:
            costs = [f"{1e3 * percentile(ends.costs, percent):.2f}" for percent in (0, 50, 95, 100)]
            name = f"{ends.case}, {ends.examples:,} examples"
            rows.append([name, str(len(ends.costs)), f"{ends.update * 1e3:.2f}", *costs])
        columns = ["one worker", "epoch ends", "an update", "more at an end: min", "median", "p95", "max"]
        show("Epoch ends, without an evaluation, in ms", columns, rows)
    if results.pauses:
        rows = []
        for one in results.pauses:
            for what, pauses in (("joins", one.joins), ("leaves", one.leaves)):
                times = [f"{1e3 * percentile(pauses, percent):.1f}" for percent in (50, 95, 99, 100)]
                rows.append([f"{one.pattern}, {what}", str(len(pauses)), *times])
        columns = ["workers", "resizes", "p50", "p95", "p99", "max"]
        show("Pauses at joins and leaves, workers ready, in ms", columns, rows)
    words = {True: "met", False: "missed"}
    judged = [(target.promise, target.measured, words[target.met]) for target in targets(results)]
    show("Targets (medians over the rounds)", ("target", "measured", ""), judged)


def _show_case(case: Measured) -> None:
    rounds = f"rounds: {case.rounds}, runs in a round: {case.repeats}"
    timed = f"{case.updates - case.warm} timed updates after {case.warm}"
    title = f"{case.case}: batch {case.batch}, workers: {case.workers}, {timed}, {rounds}"
    first = case.figures[0].system
    columns = ["system", "shard", "ms per update: min", "median", "max", f"ratio to {first}: min", "median", "max"]
    columns.append("bytes per update")
    rows = [
        (each.system, str(each.shard or "-"), *cells(each.ms, 2), *cells(each.ratio, 3), _size(each.sent))
        for each in case.figures
    ]
    show(title, columns, rows)


def _size(number: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f} B"
