"""The exchanges over emulated networks run end to end; these tests do not check speed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.choices import EXCHANGES
from batchgrowth.errors import BatchGrowthError
from batchgrowth_trainer.training import Options, train

from bench import network_results
from bench.hosts import why_not
from bench.network_cases import LEFT_OUT, NETWORKS, STRATEGIES, Strategy, job
from bench.network_results import NetworkResults, disagreements, failures
from bench.networks import bench, chosen
from bench.results import write

ROOT = Path(__file__).parents[2]
FEW = ["AllReduce", "LocalSGD", "fast", "all-three", "backups"]


def quick(folder: Path, *only: str) -> tuple[NetworkResults, str]:
    """The results of a quick run, and its tables; skips the test if it cannot run here."""
    if reason := why_not():
        pytest.skip(reason)
    file = folder / "results.json"
    command = [sys.executable, "-m", "bench.networks", "--quick", "--output", str(file)]
    command += [word for name in only for word in ("--only", name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return network_results.read(file), done.stdout


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[NetworkResults, str]:
    """A quick run of two exchanges on two networks, and of backups."""
    return quick(tmp_path_factory.mktemp("networks"), *FEW)


@pytest.mark.fault("C13")
def test_they_finish_and_cross_the_network(few: tuple[NetworkResults, str]) -> None:
    """With at least the gradients of each update, in packets of which some are lost."""
    results = few[0]
    assert [] == failures(results)
    found = [(run.strategy, run.network) for run in results.runs]
    assert [(name, network) for network in ("fast", "all-three") for name in ("AllReduce", "LocalSGD")] == found
    for run in results.runs:
        assert run.trained.updates > 0
        assert len(run.trained.accuracies) == 2
        assert run.carried.size > 4 * 39_000 * 4
    assert all((run.carried.lost > 0) == (run.network == "all-three") for run in results.runs)


@pytest.mark.fault("C13")
def test_the_weights_are_those_of_one_process(few: tuple[NetworkResults, str], tmp_path: Path) -> None:
    alone = job(Strategy("alone", {"type": "SingleProcess"}), NETWORKS[0], quick=True)
    expected = train(alone, Options(output_dir=tmp_path, paths=(str(ROOT),)))["weightsSha256"]
    assert [expected] * 2 == [run.trained.weights for run in few[0].runs if run.strategy == "AllReduce"]
    assert [] == disagreements(few[0])


def test_backups_are_made_for_a_slow_host(few: tuple[NetworkResults, str]) -> None:
    """With the weights that there are without them."""
    found = {(run.times, run.backups): run.trained for run in few[0].backups}
    assert {(times, backups) for times in (1, 8) for backups in (False, True)} == found.keys()
    assert 1 == len({trained.weights for trained in found.values()})
    assert network_results.ratios(few[0], 8, backups=True)[0] > 0
    assert found[8, False].first_backups == found[8, False].second_backups == 0
    assert found[8, True].first_backups + found[8, True].second_backups > 0


def test_the_tables_and_the_picture_of_an_earlier_run(
    few: tuple[NetworkResults, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Seconds to an accuracy of 0.8" in few[1]
    assert "4 of 4 runs" in few[1]
    file, picture = tmp_path / "results.json", tmp_path / "networks.png"
    write(few[0], file)
    bench(input_=file, markdown=True, picture=picture)
    shown = capsys.readouterr().out
    assert "| AllReduce |" in shown
    assert "Hogwild, because" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_every_exchange_on_every_network(tmp_path: Path) -> None:
    results, _ = quick(tmp_path)
    assert [] == failures(results)
    assert [] == disagreements(results)
    assert len(results.runs) == len(STRATEGIES) * len(NETWORKS)


def test_every_exchange_is_compared_or_left_out_with_a_reason() -> None:
    assert EXCHANGES.keys() == {one.exchange["type"] for one in STRATEGIES} | LEFT_OUT.keys()


def test_what_only_names() -> None:
    def names(*only: str) -> Any:
        found = chosen(only, quick=False)
        return [one.name for one in found.strategies], [one.name for one in found.networks], bool(found.slownesses)

    every = [one.name for one in STRATEGIES], [one.name for one in NETWORKS]
    assert (*every, True) == names()
    assert (["Gossip"], every[1], False) == names("Gossip")
    assert (every[0], ["10ms"], True) == names("10ms", "backups")
    assert ([], [], True) == names("backups")


@pytest.mark.parametrize(("name", "message"), [("Hogwild", "one host"), ("9ms", "10ms")])
def test_what_cannot_be_compared_is_refused(name: str, message: str) -> None:
    with pytest.raises(BatchGrowthError, match=f"--only {name}.*{message}"):
        chosen([name], quick=True)


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(BatchGrowthError, match="--output"):
        network_results.read(tmp_path / "other.json")
