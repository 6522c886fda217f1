"""The exchanges over emulated networks run end to end; these tests do not check speed."""

import subprocess
import sys
from pathlib import Path

import pytest
from batchgrowth.choices import EXCHANGES
from batchgrowth.errors import BatchGrowthError
from batchgrowth_trainer.training import Options, train
from pydantic import TypeAdapter

from bench.hosts import why_not
from bench.networks import LEFT_OUT, NETWORKS, STRATEGIES, NetworkResults, chosen, disagreements, failures, job

ROOT = Path(__file__).parents[2]
FEW = ["AllReduce", "LocalSGD", "fast", "all-three"]


def quick(folder: Path, *only: str) -> tuple[NetworkResults, str]:
    """The results of a quick run, and its tables; skips the test if it cannot run here."""
    if reason := why_not():
        pytest.skip(reason)
    file = folder / "results.json"
    command = [sys.executable, "-m", "bench.networks", "--quick", "--output", str(file)]
    command += [word for name in only for word in ("--only", name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return TypeAdapter(NetworkResults).validate_json(file.read_bytes()), done.stdout


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[NetworkResults, str]:
    """A quick run of two exchanges on two networks."""
    return quick(tmp_path_factory.mktemp("networks"), *FEW)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> NetworkResults:
    """A quick run of every exchange on every network, and of backups."""
    return quick(tmp_path_factory.mktemp("every"))[0]


@pytest.mark.fault("C13")
def test_they_finish_and_cross_the_network(few: tuple[NetworkResults, str]) -> None:
    """With at least the gradients of each update, in packets of which some are lost."""
    results = few[0]
    assert failures(results) == []
    found = [(run.strategy, run.network) for run in results.runs]
    assert [(name, network) for network in ("fast", "all-three") for name in ("AllReduce", "LocalSGD")] == found
    for run in results.runs:
        assert run.trained.updates > 0
        assert len(run.trained.accuracies) == 2
        assert run.carried.size > 4 * 39_000 * 4
    assert all((run.carried.lost > 0) == (run.network == "all-three") for run in results.runs)


@pytest.mark.fault("C13")
def test_the_weights_are_those_of_one_process(few: tuple[NetworkResults, str], tmp_path: Path) -> None:
    alone = job({"type": "SingleProcess"}, NETWORKS[0], quick=True)
    expected = train(alone, Options(output_dir=tmp_path, paths=(str(ROOT),)))["weightsSha256"]
    assert [run.trained.weights for run in few[0].runs if run.strategy == "AllReduce"] == [expected] * 2
    assert disagreements(few[0]) == []


def test_the_tables_show_them(few: tuple[NetworkResults, str]) -> None:
    assert "Seconds to an accuracy of 0.8" in few[1]
    assert "| AllReduce " in few[1]
    assert "4 of 4 runs" in few[1]
    assert "Hogwild is left out, because" in few[1]


@pytest.mark.long
def test_every_exchange_on_every_network(every: NetworkResults) -> None:
    assert failures(every) == []
    assert disagreements(every) == []
    assert len(every.runs) == len(STRATEGIES) * len(NETWORKS)


def test_every_exchange_is_compared_or_left_out_with_a_reason() -> None:
    assert EXCHANGES.keys() == {exchange["type"] for exchange in STRATEGIES.values()} | LEFT_OUT.keys()


def test_what_only_names() -> None:
    def names(*only: str) -> tuple[list[str], list[str]]:
        strategies, networks = chosen(only)
        return strategies, [network.name for network in networks]

    networks = [network.name for network in NETWORKS]
    assert names() == (list(STRATEGIES), networks)
    assert names("Gossip") == (["Gossip"], networks)
    assert names("10ms") == (list(STRATEGIES), ["10ms"])


@pytest.mark.parametrize(("name", "message"), [("Hogwild", "one host"), ("9ms", "10ms")])
def test_what_cannot_be_compared_is_refused(name: str, message: str) -> None:
    with pytest.raises(BatchGrowthError, match=f"--only {name}.*{message}"):
        chosen([name])


@pytest.mark.long
def test_knees_are_compared_with_runs() -> None:
    if reason := why_not():
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-m", "bench.knee", "--quick"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the forecast's knee is where running shows it" in done.stdout
    assert "a manifest for a deadline keeps it" in done.stdout
