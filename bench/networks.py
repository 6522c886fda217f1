"""`python -m bench.networks`: the exchanges on several hosts, over emulated networks, and with a slow host.

Every host is a network namespace on this machine; the network between them is `bench.emulator`. The scheduler of Dask
and the driver are on the first host, a worker on each of the others, and all of them stay while the networks change.
Needs root and a TUN device; the exit code does not depend on speed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from batchgrowth.contract.environment import DASK, worker_environment
from batchgrowth.errors import BatchGrowthError
from batchgrowth.spec import BatchGrowthJob
from rich.console import Console

from bench import network_results
from bench.emulator import Counters, Link
from bench.hosts import ROOT, Hosts
from bench.network_cases import (
    ACCURACY,
    BACKUPS,
    BACKUPS_WORKERS,
    LEFT_OUT,
    NETWORKS,
    QUICK_ACCURACY,
    QUICK_SLOWNESSES,
    SLOWNESSES,
    STRATEGIES,
    WORKERS,
    Network,
    Strategy,
    backups_job,
    job,
)
from bench.network_driver import Driver, Trained
from bench.network_results import BackupsRun, NetworkResults, NetworkRun
from bench.network_workload import HOST
from bench.report import as_markdown, as_table
from bench.results import this_machine, write
from bench.rounds import Report, turned

PORT = 8786
LONGEST_SECONDS = 240.0
"""After this time a training is given up, and counts as one that does not finish."""
_QUIET_SECONDS = 0.3
"""Between two trainings, for what the one before still sends."""
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is measured; `slownesses` are those of the host that is slow in the comparison of backups."""

    strategies: Sequence[Strategy]
    networks: Sequence[Network]
    slownesses: Sequence[int]


def chosen(only: Sequence[str], *, quick: bool) -> Chosen:
    """What --only names: strategies, networks, or backups; of the kinds that it does not name, everything.

    Backups are compared if nothing is named, or they are. Raises BatchGrowthError for another name.
    """
    names = [*(one.name for one in STRATEGIES), *(one.name for one in NETWORKS), BACKUPS]
    for name in only:
        if name in LEFT_OUT:
            raise BatchGrowthError(f"--only {name}: it cannot be compared here, because {LEFT_OUT[name]}")
        if name not in names:
            raise BatchGrowthError(f"--only {name}: no such exchange or network; give one of {'; '.join(names)}")
    strategies = [one for one in STRATEGIES if one.name in only]
    networks = [one for one in NETWORKS if one.name in only]
    slownesses = QUICK_SLOWNESSES if quick else SLOWNESSES
    if only and not strategies and not networks:
        return Chosen((), (), slownesses)
    return Chosen(strategies or STRATEGIES, networks or NETWORKS, slownesses if BACKUPS in only or not only else ())


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[tuple[Hosts, Driver]]:
    """Hosts on a network without delay and limit: with a scheduler and a driver, and each of the others with a worker.

    What the processes write is in the folder.
    """
    dask = {f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": str(value) for key, value in DASK.items()}
    environment = {"PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "ERROR", **dask}
    with Hosts(workers + 1) as hosts:
        hosts.connect([Link()] * hosts.count)
        first, *others = hosts.hosts
        scheduler = f"tcp://{first.address}:{PORT}"
        where = ["--host", first.address, "--port", str(PORT), "--no-dashboard"]
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *where]
        hosts.run(0, command, environment, folder / "scheduler.txt")
        how = ["--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--local-directory", str(folder)]
        how += ["--preload", "batchgrowth_trainer.worker_pod", "--no-dashboard"]
        for number, host in enumerate(others, 1):
            command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *how, "--host", host.address]
            own = {**worker_environment(1), HOST: host.address}
            hosts.run(number, command, environment | own, folder / f"worker-{number}.txt")
        yield hosts, Driver(hosts, scheduler, LONGEST_SECONDS, folder / "driver.txt")


class Stand:
    """The hosts and the driver, which train one job after another."""

    def __init__(self, hosts: Hosts, driver: Driver, folder: Path, report: Report, *, quick: bool) -> None:
        """What the processes write is in the folder; its ends are reported with a training that fails."""
        self._hosts, self._driver, self._folder, self._report, self._quick = hosts, driver, folder, report, quick

    def run(self, strategy: Strategy, network: Network, seed: int) -> NetworkRun:
        """One training on that network; `seed` decides which packets are lost."""
        self._hosts.connect([network.link] * self._hosts.count, seed)
        trained = self._train(f"{strategy.name}, {network.name}", job(strategy, network, quick=self._quick))
        carried = self._settled()
        return NetworkRun(strategy.name, network.name, strategy.promise, trained, carried)

    def run_backups(self, times: int, *, backups: bool) -> BackupsRun:
        """One training of GatherScatter on the network without delay and limit."""
        name = f"{'backups' if backups else 'no backups'}, slowest host {times}"
        trained = self._train(name, backups_job(times, backups=backups, quick=self._quick))
        time.sleep(_QUIET_SECONDS)
        return BackupsRun(times, backups, trained)

    def _train(self, name: str, given: BatchGrowthJob) -> Trained:
        try:
            trained = self._driver.train(given)
        except BatchGrowthError as error:
            raise BatchGrowthError(f"{name}: {error}\n{self._ends()}") from error
        self._report(f"{name}: {trained.error or f'{trained.total_seconds:.1f} s'}")
        if trained.error:
            self._report(self._ends())
        return trained

    def _ends(self) -> str:
        """The last lines that each process has written."""
        files = {file.name: file.read_text(errors="replace") for file in sorted(self._folder.glob("*.txt"))}
        return "\n".join(f"{name}: {line}" for name, text in files.items() for line in text.splitlines()[-_LAST_LINES:])

    def _settled(self) -> Counters:
        time.sleep(_QUIET_SECONDS)
        return self._hosts.connect([Link()] * self._hosts.count)


@contextmanager
def stand(workers: int, report: Report, *, quick: bool) -> Iterator[Stand]:
    """A cluster with that number of workers, in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder,
        cluster(Path(folder), workers) as (hosts, driver),
    ):
        yield Stand(hosts, driver, Path(folder), report, quick=quick)


def measure(what: Chosen, rounds: int, report: Report, output: Path | None, *, quick: bool) -> NetworkResults:
    """The results of all rounds, first of the networks and then of backups; `output` gets those of the finished ones.

    In each round the order is that of the round before, rotated by one, and every second round has it backwards.
    """
    accuracy = QUICK_ACCURACY if quick else ACCURACY
    titles = {network.name: network.title for network in what.networks}
    with Hosts(1) as one:
        results = NetworkResults(this_machine(), one.congestion_control, quick, accuracy, titles)
    if what.networks:
        with stand(WORKERS, report, quick=quick) as here:
            _warm_up(lambda: here.run(STRATEGIES[0], NETWORKS[0], 0), report, quick=quick)
            for number in _rounds(rounds, results, report, output):
                for network in turned(what.networks, number):
                    results.runs.extend(here.run(one, network, number) for one in turned(what.strategies, number))
    if what.slownesses:
        with stand(BACKUPS_WORKERS, report, quick=quick) as here:
            _warm_up(lambda: here.run_backups(1, backups=False), report, quick=quick)
            for number in _rounds(rounds, results, report, output):
                for times in turned(what.slownesses, number):
                    results.backups.extend(here.run_backups(times, backups=backups) for backups in (False, True))
    return results


def _warm_up(train: Callable[[], object], report: Report, *, quick: bool) -> None:
    """Train once, after which workers know how long their shards take."""
    if not quick:
        report("warming up")
        train()


def _rounds(rounds: int, results: NetworkResults, report: Report, output: Path | None) -> Iterator[int]:
    """The numbers of the rounds; after each the results are written."""
    for number in range(rounds):
        yield number
        if output:
            write(results, output)
        report(f"round {number + 1} of {rounds} is over")


Quick = Annotated[bool, typer.Option("--quick", help="1 round of 2 epochs, to see that everything runs.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="An exchange, a network (fast, 10ms, …) or backups; may be repeated."),
]
Output = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here after each round.")]
Input = Annotated[
    Path | None, typer.Option("--input", metavar="FILE.json", help="Show these results instead of measuring.")
]
Picture = Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Draw the seconds to the accuracy.")]


def bench(
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds; --quick takes 1.")] = 3,
    quick: Quick = False,
    only: Only = None,
    output: Output = None,
    input_: Input = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    picture: Picture = None,
) -> None:
    """Compare the exchanges on several hosts over emulated networks, and with a slow host."""
    progress = Console(stderr=True)

    def report(text: str) -> None:
        progress.print(text, style="dim", highlight=False)

    try:
        found = (
            network_results.read(input_)
            if input_
            else measure(chosen(only or [], quick=quick), 1 if quick else rounds, report, output, quick=quick)
        )
    except BatchGrowthError as error:
        raise typer.BadParameter(str(error)) from error
    _show(found, markdown)
    if picture:
        from bench.networks_picture import draw

        draw(found, picture)


def _show(found: NetworkResults, markdown: bool) -> None:
    sheets = list(network_results.sheets(found))
    if markdown:
        print("\n\n".join([network_results.about(found), *map(as_markdown, sheets)]))
        return
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(network_results.about(found), highlight=False)
    for sheet in sheets:
        console.print(as_table(sheet), highlight=False)


if __name__ == "__main__":
    typer.run(bench)
