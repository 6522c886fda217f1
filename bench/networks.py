"""`python -m bench.networks`: the exchanges on several hosts, over emulated networks.

Every host is a network namespace on this machine; the network between them is `bench.emulator`. The scheduler of Dask
and the driver are on the first host, a worker on each of the others, and all of them stay while the networks change.
Needs root and a TUN device; the exit code does not depend on speed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from batchgrowth.choices import EXCHANGES
from batchgrowth.contract.environment import DASK, worker_environment
from batchgrowth.errors import BatchGrowthError
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.spec import BatchGrowthJob

from bench.emulator import NETWORK, Counters, Link
from bench.hosts import ROOT, Hosts
from bench.network_driver import Driver, Trained
from bench.paced_workload import HOST
from bench.paced_workload import __name__ as WORKLOAD
from bench.tables import about, between, show, spread, turned, write

EXAMPLE = ROOT / "examples" / "digits.yaml"
WORKERS = 4
"""The hosts with a worker each, beside the first one with the scheduler and the driver; a slow host is the last."""
EXAMPLE_SECONDS = 0.00023
"""How long computing takes on each host for each example, some eight times as long as on a core of a laptop.

If it took much less, four hosts would contend for two cores.
"""
ACCURACY = 0.93
QUICK_ACCURACY = 0.8
LEFT_OUT = {
    "Hogwild": "its threads share the memory of one host",
    "SingleProcess": "it has no exchange",
}
"""Exchanges that use no workers, and why they cannot be compared."""
PORT = 8786
LONGEST_SECONDS = 240.0
"""The time after which a training is given up, and counts as one that does not finish."""
_QUIET_SECONDS = 0.3
"""The time between two trainings, for what the one before still sends."""
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Network:
    """Equal links of all hosts, and how many `times` slower than the others the last host computes."""

    name: str
    title: str
    link: Link
    times: int = 1


NETWORKS = (
    Network("fast", "no delay, no limit", Link()),
    Network("10ms", "10 ms of delay", Link(delay_seconds=0.01)),
    Network("100Mbit", "100 Mbit/s", Link(megabits=100)),
    Network("loss", "1 % of packets lost", Link(loss=0.01)),
    Network("all-three", "10 ms, 100 Mbit/s, 1 % lost", Link(delay_seconds=0.01, megabits=100, loss=0.01)),
    Network("slow-host", "one host 8 times slower", Link(), times=8),
)
STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: {"type": name} for name, entry in EXCHANGES.items() if entry.uses_workers},
    "AllReduce, Int8": {"type": "AllReduce", "compression": "Int8"},
}
"""Name -> `exchange` of the job."""


@dataclass(frozen=True, slots=True)
class NetworkRun:
    """A strategy's training on a network, and what the emulator carried for it."""

    strategy: str
    network: str
    trained: Trained
    carried: Counters

    @property
    def is_exact(self) -> bool:
        """Whether its weights must be those of one process, which compressed gradients do not give."""
        exchange = STRATEGIES[self.strategy]
        return "compression" not in exchange and EXCHANGES[exchange["type"]].promise == "Exact"


@dataclass(frozen=True, slots=True)
class NetworkResults:
    """All runs of all finished rounds; `quick` figures only show that everything runs."""

    quick: bool
    accuracy: float
    runs: list[NetworkRun] = field(default_factory=list)


# --- what is trained --------------------------------------------------------------------------------------------------


def job(exchange: dict[str, Any], network: Network, *, quick: bool) -> BatchGrowthJob:
    """Return the digits example with a net of 39,000 parameters and an accuracy after each epoch, on all workers.

    Its learning rate and momentum are those with which gradients of a few updates ago do no harm yet.
    """
    epochs = 8
    if quick:
        epochs = 2
    growth = {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": epochs // 2}}
    speed = {"seconds": str(EXAMPLE_SECONDS), "slowest": f"{NETWORK}{WORKERS + 1}", "times": str(network.times)}
    given = {
        "epochs": epochs,
        "workload.device": "CPU",
        "workload.entrypoint": f"{WORKLOAD}:mlp",
        "workload.arguments": {"hidden": "512", **speed},
        "batch": {"initial": 64, "maximum": 256, "shard": 16, "growth": growth},
        "learningRate.initial": "0.1",
        "optimizer.sgd.momentum": "0.7",
        "evaluation": {"everyEpochs": 1},
        "exchange": exchange,
        "workers": {"minimum": WORKERS, "maximum": WORKERS, "waitSeconds": 60},
    }
    return load_manifest(EXAMPLE, [f"{path}={json.dumps(value)}" for path, value in given.items()])


# --- the measurement --------------------------------------------------------------------------------------------------


class Stand:
    """Hosts with a scheduler, a driver and workers, which train one job after another."""

    def __init__(self, hosts: Hosts, folder: Path, *, quick: bool = False) -> None:
        """Start the processes; they write to the folder, and the ends of that are reported with a failed training."""
        self._hosts = hosts
        self._folder = folder
        self._quick = quick
        dask = {f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": str(value) for key, value in DASK.items()}
        environment = {"PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "ERROR", **dask}
        hosts.connect([Link()] * hosts.count)
        first, *others = hosts.hosts
        scheduler = f"tcp://{first.address}:{PORT}"
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
        command += ["--host", first.address, "--port", str(PORT)]
        hosts.run(0, command, environment, folder / "scheduler.txt")
        for number, host in enumerate(others, 1):
            command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--host", host.address]
            command += ["--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard"]
            command += ["--local-directory", str(folder), "--preload", "batchgrowth_trainer.worker_pod"]
            own = {**worker_environment(1), HOST: host.address}
            hosts.run(number, command, environment | own, folder / f"worker-{number}.txt")
        self._driver = Driver(hosts, scheduler, LONGEST_SECONDS, folder / "driver.txt")

    def run(self, strategy: str, network: Network, seed: int) -> NetworkRun:
        """Train once on that network; `seed` decides which packets are lost."""
        name = f"{strategy}, {network.name}"
        trained = self.train(name, job(STRATEGIES[strategy], network, quick=self._quick), network.link, seed)
        return NetworkRun(strategy, network.name, trained, self._hosts.connect([Link()] * self._hosts.count))

    def train(self, name: str, one: BatchGrowthJob, link: Link, seed: int = 0, kept: Path | None = None) -> Trained:
        """Train a job over these links, and report on it by its name; leave its files in `kept`/run if given."""
        self._hosts.connect([link] * self._hosts.count, seed)
        try:
            trained = self._driver.train(one, kept)
        except BatchGrowthError as error:
            raise BatchGrowthError(f"{name}: {error}\n{self._ends()}") from error
        _report(f"{name}: {trained.error or f'{trained.total_seconds:.1f} s'}")
        if trained.error:
            _report(self._ends())
        time.sleep(_QUIET_SECONDS)
        return trained

    def _ends(self) -> str:
        """Return the last lines that each process has written."""
        files = {file.name: file.read_text(errors="replace") for file in sorted(self._folder.glob("*.txt"))}
        return "\n".join(f"{name}: {line}" for name, text in files.items() for line in text.splitlines()[-_LAST_LINES:])


def _report(text: str) -> None:
    print(text, file=sys.stderr)


def chosen(only: Sequence[str]) -> tuple[list[str], list[Network]]:
    """Return the strategies and the networks that --only names; all of a kind that it does not name.

    Raises BatchGrowthError for another name.
    """
    names = [*STRATEGIES, *(one.name for one in NETWORKS)]
    for name in only:
        if name in LEFT_OUT:
            raise BatchGrowthError(f"--only {name}: it cannot be compared here, because {LEFT_OUT[name]}")
        if name not in names:
            raise BatchGrowthError(f"--only {name}: no such exchange or network; give one of {'; '.join(names)}")
    strategies = [name for name in STRATEGIES if name in only]
    networks = [one for one in NETWORKS if one.name in only]
    return strategies or list(STRATEGIES), networks or list(NETWORKS)


def measure(only: Sequence[str], rounds: int, output: Path | None, *, quick: bool) -> NetworkResults:
    """Return the results of all rounds; `output` gets those of the finished ones."""
    strategies, networks = chosen(only)
    results = NetworkResults(quick, ACCURACY)
    if quick:
        rounds = 1
        results = NetworkResults(quick, QUICK_ACCURACY)
    with tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder, Hosts(WORKERS + 1) as hosts:
        stand = Stand(hosts, Path(folder), quick=quick)
        if not quick:  # the first training is slower, since workers learn how long their shards take
            stand.run(strategies[0], NETWORKS[0], 0)
        for number in range(rounds):
            for network in turned(networks, number):
                results.runs.extend(stand.run(name, network, number) for name in turned(strategies, number))
            if output:
                write(results, output)
            _report(f"round {number + 1} of {rounds} is over")
    return results


def main(
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds; --quick takes 1.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="1 round of 2 epochs, to see that everything runs.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An exchange or a network (fast, 10ms, …); repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the results here after each round, too.")
    ] = None,
) -> None:
    """Compare the exchanges on several hosts over emulated networks, one of them with a slow host."""
    try:
        results = measure(only or [], rounds, output, quick=quick)
    except BatchGrowthError as error:
        raise typer.BadParameter(str(error)) from error
    show_results(results)


# --- tables -----------------------------------------------------------------------------------------------------------


def show_results(results: NetworkResults) -> None:
    """Print the tables, the targets last."""
    print(about(quick=results.quick))
    for name, reason in LEFT_OUT.items():
        print(f"{name} is left out, because {reason}.")
    strategies = dict.fromkeys(run.strategy for run in results.runs)
    networks = [network for network in NETWORKS if any(run.network == network.name for run in results.runs)]
    rows = [[name, *(_reached(results, name, network.name) for network in networks)] for name in strategies]
    columns = ["exchange", *(network.title for network in networks)]
    show(f"Seconds to an accuracy of {results.accuracy:g}: median (minimum to maximum)", columns, rows)

    rows = []
    for network in networks:
        runs = [run for run in results.runs if run.network == network.name]
        carried = [run.carried for run in runs]
        packets = sum(each.packets for each in carried)
        lost = 100 * sum(each.lost for each in carried) / max(1, packets)
        dropped = 100 * sum(each.dropped for each in carried) / max(1, packets)
        late = sum(each.late_seconds for each in carried) / max(1, sum(each.arrived for each in carried))
        cores = sum(each.processor_seconds for each in carried) / max(1, sum(run.trained.total_seconds for run in runs))
        figures = [f"{packets:,}", f"{lost:.2f}", f"{dropped:.2f}", f"{1e3 * late:.2f}", f"{cores:.3f}"]
        rows.append([network.title, *figures])
    columns = ["the emulator", "packets", "% lost", "% dropped by queues", "ms late, mean", "cores"]
    show("What the emulator did and took", columns, rows)

    words = {True: "met", False: "missed"}
    failed = failures(results)
    recovered = sum(run.trained.recoveries for run in results.runs)
    finished = f"{len(results.runs) - len(failed)} of {len(results.runs)} runs, {recovered} recoveries"
    differ = disagreements(results)
    exact = sum(run.is_exact and not run.trained.error for run in results.runs)
    same = f"the same SHA-256 in {exact - len(differ)} of {exact} runs"
    rows = [
        ["every exchange finishes on every network", "; ".join([finished, *failed]), words[not failed]],
        ["exact exchanges have the same weights on every network", "; ".join([same, *differ]), words[not differ]],
    ]
    show("Targets", ("target", "measured", ""), rows)


def _reached(results: NetworkResults, strategy: str, network: str) -> str:
    runs = [run.trained for run in results.runs if (run.strategy, run.network) == (strategy, network)]
    times = [trained.reached(results.accuracy) for trained in runs]
    found = [seconds for seconds in times if seconds is not None]
    if len(found) == len(runs) > 0:
        return between(spread(found), 1)
    if found:
        return f"{between(spread(found), 1)}, in {len(found)} of {len(runs)} rounds"
    failed = [trained.error for trained in runs if trained.error]
    return next(iter(failed), "not reached")


def disagreements(results: NetworkResults) -> list[str]:
    """Return a line for each exact run whose weights are not those of the first; empty if all are the same."""
    runs = [run for run in results.runs if run.is_exact and not run.trained.error]
    return [
        f"{run.strategy} on {run.network}: {run.trained.weights[:12]}, and not {runs[0].trained.weights[:12]}"
        for run in runs
        if run.trained.weights != runs[0].trained.weights
    ]


def failures(results: NetworkResults) -> list[str]:
    """Return a line for each run that did not finish."""
    return [f"{run.strategy} on {run.network}: {run.trained.error}" for run in results.runs if run.trained.error]


if __name__ == "__main__":
    typer.run(main)
