"""The benchmarks run end to end and report every system; these tests do not check speed."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

# A quick run has 16 cases and every resize; with three tests beside it, it took more than half an hour.
pytestmark = [pytest.mark.long, pytest.mark.apart, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
SYSTEMS = [
    "torch DDP",
    "one process",
    "a Dask task per gradient",
    "GatherScatter (ours)",
    "AllReduce (ours)",
]
PER_TENSOR = ["gather and scatter per tensor (torch)", "all_reduce per tensor (torch)"]
MEASURING = ["AllReduce (ours)", "AllReduce, measuring (ours)"]
ENCRYPTED = ["AllReduce (ours)", "AllReduce, encrypted (ours)"]
GUARDED = ["AllReduce, no safeguards (ours)", "AllReduce (ours)"]
GATHERING = ["GatherScatter, no safeguards (ours)", "GatherScatter (ours)"]
EXCHANGES = [
    "AllReduce (ours)",
    "Delayed (ours)",
    "ParameterServer (ours)",
    "AllReduce, BFloat16 (ours)",
    "AllReduce, Int8 (ours)",
    "Downpour (ours)",
    "LocalSGD (ours)",
    "ElasticAveraging (ours)",
    "Gossip (ours)",
    "TopK (ours)",
]
SPARING = ["one process", *EXCHANGES[3:]]
"""Systems that do not send a whole gradient in each update."""
ALONE = ["plain PyTorch loop", "one worker (ours)"]
LOADING = ["DataLoader loop, 2 processes", "one worker, 2 loaders (ours)"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> tuple[Path, str]:
    """The results of a quick run as a file, and its output."""
    file = tmp_path_factory.mktemp("bench") / "results.json"
    done = bench("--quick", "--output", str(file))
    assert done.returncode == 0, done.stderr
    return file, done.stdout


@pytest.fixture(scope="module")
def results(quick):
    return json.loads(quick[0].read_text())


def test_every_system_is_in_every_case(results):
    found = {case["case"]: [figures["system"] for figures in case["figures"]] for case in results["cases"]}
    assert found == {
        "mlp-64": SYSTEMS,
        "mlp-512": SYSTEMS,
        "wrn-64": SYSTEMS,
        "measuring-mlp-64": MEASURING,
        "measuring-wrn-64": MEASURING,
        "encrypted-mlp-64": ENCRYPTED,
        "encrypted-wrn-64": ENCRYPTED,
        "guarded-mlp-64": GUARDED,
        "guarded-gather-mlp-64": GATHERING,
        "all-wrn-64": [*SYSTEMS[:-1], *EXCHANGES],
        "all-vgg11-256": [*SYSTEMS[:3], *PER_TENSOR, SYSTEMS[3], *EXCHANGES],
        "alone-mlp-64": ALONE,
        "alone-digits-64": ALONE,
        "alone-wrn-32": ALONE,
        "loading-images-32": LOADING,
    }


def test_times_and_ratios_are_finite_and_in_order(results):
    for case in results["cases"]:
        for figures in case["figures"]:
            for spread in (figures["ms"], figures["ratio"]):
                least, middle, most = spread["least"], spread["middle"], spread["most"]
                assert 0 < least <= middle <= most < math.inf, (case["case"], figures["system"])


def test_ratios_are_to_the_first_system(results):
    """DDP, or where the cost of measuring is compared, the plain AllReduce.

    A quick run has one round, so a ratio of medians is that of the round.
    """
    for case in results["cases"]:
        first = case["figures"][0]["ms"]["middle"]
        for figures in case["figures"]:
            assert figures["ms"]["middle"] / first == pytest.approx(figures["ratio"]["middle"])


def test_an_exchange_moves_at_least_one_gradient_each_way(results):
    """4 bytes for each parameter, to the other worker and back, unless it sends less by design."""
    parameters = {"mlp": 9_610, "wrn": 2_748_890, "vgg11": 9_231_114}
    for case in (case for case in results["cases"] if case["workers"] > 1):
        for figures in case["figures"]:
            assert figures["sent"] < math.inf
            if figures["system"] not in SPARING:
                [model] = [name for name in parameters if name in case["case"]]
                assert figures["sent"] >= 0.9 * 2 * 4 * parameters[model], (case["case"], figures["system"])


def test_pauses_of_joins_and_leaves(results):
    verified = ["mlp 2-1-2, verified", "wrn 2-1-2, verified"]
    patterns = [one["pattern"] for one in results["pauses"]]
    assert patterns == ["mlp 2-1-2", "mlp 4-2-4", "wrn 2-1-2", "wrn 4-2-4", *verified]
    for one in results["pauses"]:
        assert len(one["joins"]) == len(one["leaves"]) == 2
        assert all(0 < pause < 60 for pause in (*one["joins"], *one["leaves"]))


def test_epoch_ends(results):
    [one] = results["epoch_ends"]
    assert (one["case"], one["examples"], len(one["costs"])) == ("mlp-64", 1437, 2)
    assert 0 < one["update"] < 60
    assert all(-60 < cost < 60 for cost in one["costs"])


def test_starts(results):
    assert [one["what"] for one in results["starts"]] == ["trial, mlp-64", "trial, wrn-64", "certificate, 2 workers"]
    for one in results["starts"]:
        assert len(one["without"]) == len(one["with_it"]) == 1
        assert all(0 < seconds < 120 for seconds in (*one["without"], *one["with_it"]))


def test_checks(results):
    [one] = results["checks"]

    assert (one["case"], one["every"], len(one["costs"])) == ("mlp-64", 200, 1)
    assert one["update"] > 0


def test_the_tables_show_it_and_end_with_the_targets(quick):
    shown = quick[1]
    for text in (
        *SYSTEMS,
        "wrn 4-2-4, leaves",
        "The four tasks of the CS744 report",
        "AllReduce moves at most 23 MB",
        "AllReduce, measuring (ours) at most",
        "more of a start: trial, wrn-64",
        "one worker (ours) at most",
        "mlp-64, 1,437 examples",
    ):
        assert text in shown
    assert shown.index("Pauses at joins") < shown.index("Targets")


def test_repeats_are_those_asked_for(tmp_path):
    done = bench("--quick", "--repeats", "2", "--only", "alone-mlp-64", "--output", str(tmp_path / "results.json"))
    assert done.returncode == 0, done.stderr
    assert "rounds: 1, runs in a round: 2" in done.stdout
    assert [case["repeats"] for case in json.loads((tmp_path / "results.json").read_text())["cases"]] == [2]


def test_an_unknown_case_is_refused():
    done = bench("--only", "mlp-63")
    assert done.returncode == 2
    assert "mlp-63" in done.stderr


def test_an_unknown_system_is_refused():
    done = bench("--only", "mlp-64", "--system", "AllReduce")
    assert done.returncode == 2
    assert "AllReduce (ours)" in done.stderr
