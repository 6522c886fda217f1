"""The results of `bench.networks`: written as JSON, read back, and shown as tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from batchgrowth.errors import BatchGrowthError
from pydantic import TypeAdapter, ValidationError

from bench.emulator import Counters
from bench.network_cases import BACKUPS_WORKERS, LEFT_OUT, WORKERS
from bench.network_driver import Trained
from bench.report import Sheet, cells
from bench.results import Machine
from bench.rounds import Spread, spread

EXACT = "Exact"
MOST_TIMES = 1.3
"""The target: what an update with a slow host and backups takes, in those without a slow host."""


@dataclass(frozen=True, slots=True)
class NetworkRun:
    """A strategy's training on a network, and what the emulator carried for it; `promise` is that of its weights."""

    strategy: str
    network: str
    promise: str
    trained: Trained
    carried: Counters


@dataclass(frozen=True, slots=True)
class BackupsRun:
    """A training of GatherScatter with a host that is `times` slower than the others, with or without backups."""

    times: int
    backups: bool
    trained: Trained


@dataclass(frozen=True, slots=True)
class NetworkResults:
    """All runs of all finished rounds; `quick` figures only show that everything runs.

    `networks` are the titles of the networks by name, in their order.
    """

    machine: Machine
    congestion_control: str
    quick: bool
    accuracy: float
    networks: dict[str, str]
    runs: list[NetworkRun] = field(default_factory=list)
    backups: list[BackupsRun] = field(default_factory=list)

    @property
    def strategies(self) -> list[str]:
        """The names of the strategies, in their order."""
        return list(dict.fromkeys(run.strategy for run in self.runs))

    def of(self, strategy: str, network: str) -> list[NetworkRun]:
        """The runs of a strategy on a network, one for each round."""
        return [run for run in self.runs if (run.strategy, run.network) == (strategy, network)]

    def reached(self, strategy: str, network: str) -> list[float]:
        """The seconds to the accuracy, one for each round that has reached it."""
        seconds = [run.trained.reached(self.accuracy) for run in self.of(strategy, network)]
        return [second for second in seconds if second is not None]

    def reached_always(self, strategy: str, network: str) -> bool:
        """Whether every round has reached the accuracy."""
        return 0 < len(self.reached(strategy, network)) == len(self.of(strategy, network))

    @property
    def promises(self) -> dict[str, str]:
        """The promise of each strategy, by name."""
        return {run.strategy: run.promise for run in self.runs}

    def fastest(self, network: str, among: Collection[str]) -> str:
        """The one of these with the least median there, of those that reached it in all rounds; empty if none did."""
        always = [name for name in among if self.reached_always(name, network)]
        medians = {name: median(self.reached(name, network)) for name in always}
        return min(medians, key=lambda name: medians[name], default="")


def read(file: Path) -> NetworkResults:
    """The results in a file that `results.write` wrote. Raises BatchGrowthError for any other file."""
    try:
        return TypeAdapter(NetworkResults).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise BatchGrowthError(f"--input {file}: no results of bench.networks; give a file of --output") from error


# --- tables -----------------------------------------------------------------------------------------------------------


def about(results: NetworkResults) -> str:
    """A line about the machine, and one about what was left out."""
    machine = results.machine
    quick = " Quick mode: these figures only say that everything runs." if results.quick else ""
    left_out = "; ".join(f"{name}, because {reason}" for name, reason in LEFT_OUT.items())
    return (
        f"{machine.processor}, {machine.cores} cores; Python {machine.python}, torch {machine.torch}; "
        f"TCP {results.congestion_control}; {WORKERS} hosts with a worker each, "
        f"{BACKUPS_WORKERS} where backups are compared.{quick}\nLeft out: {left_out}."
    )


def sheets(results: NetworkResults) -> Iterator[Sheet]:
    """The tables, the targets last."""
    if results.runs:
        yield _network_sheet(results, f"Seconds to an accuracy of {results.accuracy:g}", _reached)
        yield _network_sheet(results, "Seconds of the whole run, with its start and end", _total)
        yield _network_sheet(results, "Megabytes on the network, in the whole run", _sent)
        yield _emulator_sheet(results)
    if results.backups:
        yield _backups_sheet(results)
    yield Sheet("Targets", ("target", "measured", ""), list(_targets(results)))


def _network_sheet(results: NetworkResults, title: str, cell: Callable[[NetworkResults, str, str], str]) -> Sheet:
    rows = [(name, *(cell(results, name, network) for network in results.networks)) for name in results.strategies]
    rounds = max(len(results.of(results.strategies[0], network)) for network in results.networks)
    counted = "1 round" if rounds == 1 else f"{rounds} rounds"
    return Sheet(f"{title}: median (minimum to maximum), {counted}", ("exchange", *results.networks.values()), rows)


def _reached(results: NetworkResults, strategy: str, network: str) -> str:
    found, runs = results.reached(strategy, network), results.of(strategy, network)
    if found:
        some = "" if results.reached_always(strategy, network) else f", in {len(found)} of {len(runs)} rounds"
        return _between(spread(found), 1) + some
    failed = [run.trained.error for run in runs if run.trained.error]
    return failed[0] if failed else "not reached" if runs else "-"


def _total(results: NetworkResults, strategy: str, network: str) -> str:
    found = [run.trained.total_seconds for run in results.of(strategy, network) if not run.trained.error]
    return _between(spread(found), 1) if found else "-"


def _sent(results: NetworkResults, strategy: str, network: str) -> str:
    found = [run.carried.size / 1e6 for run in results.of(strategy, network)]
    return _between(spread(found), 0) if found else "-"


def _between(found: Spread, digits: int) -> str:
    least, middle, most = cells(found, digits)
    return f"{middle} ({least} to {most})"


def _emulator_sheet(results: NetworkResults) -> Sheet:
    rows: list[tuple[str, ...]] = []
    for name, title in results.networks.items():
        runs = [run for run in results.runs if run.network == name]
        packets, carried = sum(run.carried.packets for run in runs), [run.carried for run in runs]
        seconds = sum(run.trained.total_seconds for run in runs)
        if packets and seconds:
            rows.append((
                title, f"{packets:,}", *(f"{100 * sum(getattr(c, what) for c in carried) / packets:.2f}"
                                         for what in ("lost", "dropped")),
                f"{1e3 * sum(c.late_seconds for c in carried) / max(1, sum(c.arrived for c in carried)):.2f}",
                f"{sum(c.processor_seconds for c in carried) / seconds:.3f}",
            ))  # fmt: skip
    columns = ("the emulator", "packets", "% lost", "% dropped by queues", "ms late, mean", "cores")
    return Sheet("What the emulator did and took", columns, rows)


def _backups_sheet(results: NetworkResults) -> Sheet:
    rows: list[tuple[str, ...]] = []
    for times, backups in dict.fromkeys((run.times, run.backups) for run in results.backups):
        runs = [run for run in results.backups if (run.times, run.backups) == (times, backups)]
        if any(run.trained.error for run in runs):
            rows.append((_slow(times, backups), runs[0].trained.error, *["-"] * 7))
            continue
        first = mean(run.trained.first_backups for run in runs)
        second = mean(run.trained.second_backups for run in runs)
        ms = spread([1e3 * run.trained.update_seconds for run in runs])
        ratio = spread(ratios(results, times, backups=backups) or [0.0])
        rows.append((_slow(times, backups), *cells(ms, 0), *cells(ratio, 2), f"{first:.1f}", f"{second:.1f}"))
    columns = (
        "GatherScatter", "ms per update: min", "median", "max", "ratio to no slow host: min", "median", "max",
        "backups that came first", "second",
    )  # fmt: skip
    return Sheet("A slow host, with and without backups", columns, rows)


def _slow(times: int, backups: bool) -> str:
    slow = "no slow host" if times == 1 else f"one host {times} times slower"
    return f"{slow}, backups" if backups else slow


def ratios(results: NetworkResults, times: int, *, backups: bool) -> list[float]:
    """The time of an update to that without slow host and backups in the same round, one for each round."""

    def seconds(times: int, backups: bool) -> list[float]:
        runs = [run.trained for run in results.backups if (run.times, run.backups) == (times, backups)]
        return [trained.update_seconds for trained in runs if not trained.error]

    return [one / other for one, other in zip(seconds(times, backups), seconds(1, False), strict=False) if other]


def disagreements(results: NetworkResults) -> list[str]:
    """A line for each exact run whose weights are not those of the first; empty if all are the same."""
    runs = [run for run in results.runs if run.promise == EXACT and not run.trained.error]
    return [
        f"{run.strategy} on {run.network}: {run.trained.weights[:12]}, and not {runs[0].trained.weights[:12]}"
        for run in runs
        if run.trained.weights != runs[0].trained.weights
    ]


def failures(results: NetworkResults) -> list[str]:
    """A line for each run that did not finish."""
    return [f"{run.strategy} on {run.network}: {run.trained.error}" for run in results.runs if run.trained.error]


def _targets(results: NetworkResults) -> Iterator[tuple[str, str, str]]:
    words = {True: "met", False: "missed"}
    if results.runs:
        failed, differ = failures(results), disagreements(results)
        recovered = sum(run.trained.recoveries for run in results.runs)
        finished = f"{len(results.runs) - len(failed)} of {len(results.runs)} runs, {recovered} recoveries"
        yield "every exchange finishes on every network", "; ".join([finished, *failed]), words[not failed]
        exact = sum(run.promise == EXACT and not run.trained.error for run in results.runs)
        same = f"the same SHA-256 in {exact - len(differ)} of {exact} runs"
        yield "exact exchanges have the same weights on every network", "; ".join([same, *differ]), words[not differ]
    for times in dict.fromkeys(run.times for run in results.backups if run.times > 1):
        found = ratios(results, times, backups=True)
        if found:
            target = f"{_slow(times, True)}: at most {MOST_TIMES} times an update without a slow host"
            yield target, _between(spread(found), 2), words[median(found) <= MOST_TIMES]
