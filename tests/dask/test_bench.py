"""The benchmarks run end to end and report every system; these tests do not check speed."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bench import computing, kept_memory, optimizer_steps

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # a quick run has 14 cases and every resize
ROOT = Path(__file__).parents[2]
SYSTEMS = [
    "torch DDP",
    "one process",
    "gather/scatter per tensor",
    "all_reduce per tensor",
    "a Dask task per gradient",
    "GatherScatter (ours)",
    "AllReduce (ours)",
]
PAIRS = {
    "measuring": ["AllReduce (ours)", "AllReduce, measuring (ours)"],
    "encrypted": ["AllReduce (ours)", "AllReduce, encrypted (ours)"],
}
EXCHANGES = [
    "AllReduce", "Delayed", "ParameterServer", "AllReduce, BFloat16", "AllReduce, Int8", "Downpour", "LocalSGD",
    "ElasticAveraging", "Gossip", "TopK",
]  # fmt: skip
FINE = "AllReduce, shard 32 (ours)"
SPARING = ["one process", *(f"{name} (ours)" for name in EXCHANGES[3:])]
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
    compared = {"mlp-64": SYSTEMS, "mlp-512": [*SYSTEMS, FINE], "wrn-8": SYSTEMS}
    pairs = {f"{what}-{case}": PAIRS[what] for what in PAIRS for case in ("mlp-64", "wrn-8")}
    others = {f"exchanges-{case}": [f"{name} (ours)" for name in EXCHANGES] for case in ("mlp-64", "wrn-8")}
    ours = [f"{name} (ours)" for name in EXCHANGES]
    others["all-vgg11-8"] = [name for name in SYSTEMS if name != "AllReduce (ours)"] + ours
    alone = {f"alone-{case}": ALONE for case in ("mlp-64", "digits-512", "wrn-8")}
    assert {**compared, **pairs, **others, **alone, "loading-images-8": LOADING} == found


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
            enough = 0.9 * 2 * 4 * parameters[case["model"]] if figures["system"] not in SPARING else -math.inf
            assert enough <= figures["sent"] < math.inf, (case["case"], figures["system"])


def test_pauses_of_joins_and_leaves(results):
    assert ["mlp 2-1-2", "mlp 4-2-4", "wrn 2-1-2", "wrn 4-2-4"] == [one["pattern"] for one in results["pauses"]]
    for one in results["pauses"]:
        assert len(one["joins"]) == len(one["leaves"]) == 2
        assert all(0 < pause < 60 for pause in (*one["joins"], *one["leaves"]))


def test_epoch_ends(results):
    [one] = results["epoch_ends"]
    assert ("mlp-512", 1437, 2) == (one["case"], one["examples"], len(one["costs"]))
    assert 0 < one["update"] < 60
    assert all(-60 < cost < 60 for cost in one["costs"])


def test_the_tables_show_it_and_end_with_the_targets(quick):
    shown = quick[1]
    for text in (
        *SYSTEMS,
        FINE,
        "wrn 4-2-4, leaves",
        "AllReduce moves at most 23 MB",
        "AllReduce, measuring (ours) at most",
        "one worker (ours) at most",
        "mlp-512, 1,437 examples",
    ):
        assert text in shown
    assert shown.index("Pauses at joins") < shown.index("Targets")


def test_markdown_of_an_earlier_run(quick):
    """Measures nothing, so it needs no --quick."""
    done = bench("--input", str(quick[0]), "--markdown")
    assert done.returncode == 0, done.stderr
    assert "| torch DDP | - |" in done.stdout
    assert "**Targets (medians over the rounds)**" in done.stdout


def test_repeats_are_those_asked_for(tmp_path):
    done = bench("--quick", "--repeats", "2", "--only", "alone-mlp-64", "--output", str(tmp_path / "results.json"))
    assert done.returncode == 0, done.stderr
    assert "1 round of 2 runs in turns" in done.stdout
    assert [2] == [case["repeats"] for case in json.loads((tmp_path / "results.json").read_text())["cases"]]


def test_computing_with_and_without_measuring(capsys):
    computing.main(updates=2)
    shown = capsys.readouterr().out
    assert all(system in shown for system in PAIRS["measuring"])


def test_memory_that_is_kept(capsys):
    kept_memory.main(only="wrn-64", rounds=1, updates=1)
    shown = capsys.readouterr().out
    assert all(name in shown for name in kept_memory.SETTINGS)


def test_steps_of_the_optimizers(capsys):
    optimizer_steps.main(elements=300_000, steps=1)
    shown = capsys.readouterr().out
    assert all(name in shown for name in optimizer_steps.OPTIMIZERS)
    assert 3 == shown.count("131,072")


@pytest.mark.parametrize(("given", "answer"), [
    ({"only": "wrn-63"}, "no such case; give one of mlp-64,"),
    ({"only": "wrn-64", "updates": 7}, "has 8 updates, and the first 2 are not counted; give 6 at most"),
])  # fmt: skip
def test_memory_that_cannot_be_measured_is_refused(given, answer):
    with pytest.raises(typer.BadParameter, match=answer):
        kept_memory.main(**{"rounds": 1} | given)


def test_an_unknown_case_is_refused():
    done = bench("--only", "mlp-63")
    assert done.returncode == 2
    assert "mlp-63" in done.stderr


def test_an_unknown_system_is_refused():
    done = bench("--only", "mlp-64", "--system", "AllReduce")
    assert done.returncode == 2
    assert "AllReduce (ours)" in done.stderr


def test_a_file_that_is_no_result_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    done = bench("--input", str(tmp_path / "other.json"))
    assert done.returncode == 2
    assert "--output" in done.stderr
