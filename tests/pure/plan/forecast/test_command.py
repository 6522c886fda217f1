"""`batchgrowth forecast`: what it prints, and what it says of options that make no sense."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import cli
from batchgrowth.forecast import command, prices
from batchgrowth.forecast.networks import named
from batchgrowth.forecast.sentences import number, unit_of
from batchgrowth.forecast.step_time import Constants, Estimated, StepTime
from batchgrowth.manifest.reading import read_manifest

ROOT = Path(__file__).parents[4]
TABLE1 = ROOT / "examples" / "table1" / "5120.yaml"
DIGITS = ROOT / "examples" / "digits.yaml"
CATALOG = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region
g4dn.xlarge,T4,1.0,4,16,0.526,0.1578,us-east-1
g4dn.xlarge,T4,1.0,4,16,0.587,,eu-west-1
g4dn.12xlarge,T4,4.0,48,192,3.912,1.2,us-east-1
m5.large,,,2,8,0.0,0.04,us-east-1
bad,,,2,8,cheap,-1,us-east-1
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function: exit code, output and errors of `batchgrowth forecast`."""
    monkeypatch.setenv("COLUMNS", "200")

    def ran(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["forecast", *map(str, arguments)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return ran


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "aws.csv"
    path.write_text(CATALOG)
    return path


def test_a_table_and_its_answers(run: Run) -> None:
    code, out, err = run(TABLE1, "--network", "moderate", "--price-per-worker-hour", "0.526", "--reclaim-every", "3h")
    lines = out.splitlines()

    assert (code, err) == (0, "")
    assert lines[0].split() == [
        *("stage", "epochs", "batch", "workers", "updates", "ms/update", "minutes", "worker-h", "$")
    ]
    assert lines[1].split()[:8] == ["1", "0", "–", "60", "256", "2", "11,760", "79.72"]
    assert lines[5].split() == ["all", "14,960", "80.56", "20.1", "(15.7–25.7)", "1.84", "0.968", "(0.757–1.24)"]
    assert lines[7] == (
        "growth: 20.1 minutes instead of 52.1 and $0.968 instead of $0.913; a constant batch of 256 takes 39,200 "
        "updates on 2 workers"
    )
    assert lines[8].startswith("knee: workers.maximum 10, with 23.2 minutes and 1.78 worker-hours; beyond it, one more")
    assert lines[9].startswith("spot: 20.7 (16.2–26.5) minutes, 2.9% more, if each worker is reclaimed every 3 h and")
    assert lines[10].startswith("Amdahl: contention 20.9 (")
    assert lines[11].startswith("Gunther: contention 16.8 (")
    assert lines[13].startswith("note: computing is that of the paper, a WRN 16-4 on a T4")


def test_the_three_networks_of_the_paper(run: Run) -> None:
    code, out, _ = run(TABLE1, "--network", "paper", "--slots", "4", "--json")
    found = json.loads(out)["forecasts"]

    assert code == 0
    assert [one["label"] for one in found] == ["centralized", "moderate", "high"]
    assert [round(one["seconds"]["value"] / 60, 1) for one in found] == [69.4, 45.1, 43.3]
    assert found[1]["stages"][0]["workersUsed"] == 2
    assert "moderate:" in run(TABLE1, "--network", "paper")[1].splitlines()


def test_json_has_every_answer(run: Run) -> None:
    _, out, _ = run(DIGITS, "--network", "high", "--price-per-worker-hour", "1", "--reclaim-every", "90min", "--json")
    (found,) = json.loads(out)["forecasts"]

    assert found["pricePerWorkerHour"] == 1
    assert found["constantBatch"]["updates"] == 1350
    assert found["secondsWithReclaims"]["value"] > found["seconds"]["value"]
    assert [point["workers"] for point in found["curve"]] == [1, 2, 3, 4]
    assert [law["law"] for law in found["laws"]] == ["Amdahl", "Gunther"]
    assert found["money"]["value"] == pytest.approx(found["workerHours"]["value"])


def test_a_job_that_does_not_grow_has_no_saving_and_no_knee(run: Run) -> None:
    _, out, _ = run(DIGITS, "--network", "high", "--set", "batch.maximum=32")

    assert "growth:" not in out
    assert "knee:" not in out
    (found,) = json.loads(run(DIGITS, "--network", "high", "--set", "batch.maximum=32", "--json")[1])["forecasts"]
    assert found.keys() & {"constantBatch", "pricePerWorkerHour", "secondsWithReclaims"} == set()


def test_a_measured_batch_is_forecast_as_if_it_stayed(run: Run) -> None:
    out = run(ROOT / "examples" / "digits-measured.yaml", "--network", "high")[1]

    assert (
        "note: the batch follows the noise scale, which training measures; this is the forecast of a batch that" in out
    )


def test_no_knee_where_each_worker_is_worth_it(run: Run) -> None:
    _, out, _ = run(DIGITS, "--network", "high", "--worth", "0.1")

    assert "knee: none; up to workers.maximum 4, one more worker shortens the run by 0.1 % or more" in out


def test_a_narrow_terminal_gets_a_list(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = run(TABLE1, "--network", "high")[1]

    assert "stage     1\nepochs    0 – 60\nbatch     256\nworkers   2\n" in out


def test_a_long_plan_shows_its_ends(run: Run) -> None:
    out = run(DIGITS, "--network", "high", "--set", "batch.growth={type: Linear, linear: {examplesPerUpdate: '1'}}")[1]

    assert [line.split()[0] for line in out.splitlines()[19:23]] == ["19", "20", "…", out.splitlines()[22].split()[0]]


def test_a_manifest_that_keeps_a_deadline(run: Run) -> None:
    code, out, err = run(TABLE1, "--network", "moderate", "--deadline", "30m", "--price-per-worker-hour", "1")
    job = read_manifest(out)

    assert code == 0
    assert job.spec.workers.maximum == 10
    assert yaml.safe_load(out)["spec"].keys() == yaml.safe_load(TABLE1.read_text())["spec"].keys()
    assert "workers.maximum 10 keeps it, with 23.2 (18.1–29.7) minutes and $1.78:" in err
    assert "with 23.2 (18.1–29.7) minutes:" in run(TABLE1, "--network", "moderate", "--deadline", "30m")[2]
    _, out, _ = run(TABLE1, "--network", "moderate", "--deadline", "30m", "--json")
    assert json.loads(out)["choice"]["manifest"]["spec"]["workers"]["maximum"] == 10


def test_a_manifest_that_is_printed_keeps_decimals_in_quotes(run: Run) -> None:
    out = run(TABLE1, "--network", "moderate", "--deadline", "30m", "--set", "learningRate.initial=1e-3")[1]
    assert read_manifest(out).spec.learning_rate.initial == "1e-3"


def test_a_deadline_for_the_shortest_manifest(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "apiVersion: batchgrowth.dev/v1alpha1\nkind: BatchGrowthJob\nmetadata: {name: short}\nspec: {workload: "
        "{entrypoint: 'a:b', examples: 1000}, epochs: 2, batch: {initial: 32, maximum: 64}, learningRate: "
        "{initial: '0.1'}}\n"
    )
    code, out, _ = run(path, "--network", "moderate", "--deadline", "1h")

    assert code == 0
    assert read_manifest(out).spec.workers.maximum == 1


def test_a_deadline_or_a_budget_that_cannot_be_kept(run: Run) -> None:
    code, out, err = run(TABLE1, "--network", "moderate", "--deadline", "10m")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "--deadline: 10 minutes; no workers.maximum keeps that in 19 of 20 cases. The nearest is 40, for which 25.7 "
        "minutes would do"
    )
    both = ("--deadline", "10m", "--budget", "0.1", "--price-per-worker-hour", "1")
    assert run(TABLE1, "--network", "moderate", *both)[2].splitlines()[-1] == (
        "--deadline: 10 minutes and --budget: $0.1; no workers.maximum keeps that in 19 of 20 cases. The nearest is "
        "40, for which 25.7 minutes and $2.36 would do"
    )
    budget = ("--budget", "0.1", "--price-per-worker-hour", "1")
    assert run(TABLE1, "--network", "moderate", *budget)[2].splitlines()[-1].startswith("--budget: $0.1; no workers")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--network: missing; give --fit RUN, --measure, or --network with moderate, high, paper or a file of"),
        (
            ["--network", "gone"],
            "--network gone: cannot be read (no such file or directory); give moderate, high, paper",
        ),
        (["--slots", "0"], "--slots: '0'; give a number from 1 to 1000, or workers if all compute at once"),
        (["--slots", "many"], "--slots: 'many'; give a number from 1 to 1000, or workers if all compute at once"),
        (["--price-per-worker-hour", "0"], "--price-per-worker-hour: 0; give dollars above 0 and at most 1e+09, or"),
        (
            ["--price-per-worker-hour", "nan"],
            "--price-per-worker-hour: nan; give dollars above 0 and at most 1e+09, or",
        ),
        (["--budget", "5"], "--budget: 5; give a price too: --prices or --price-per-worker-hour"),
        (["--budget", "-5"], "--budget: -5; give dollars above 0 and at most 1e+09, or leave the option out"),
        (
            ["--budget", "2000000000"],
            "--budget: 2e+09; give dollars above 0 and at most 1e+09, or leave the option out",
        ),
        (["--deadline", "soon"], "--deadline: 'soon'; give a time above 0, such as 8h, 90min or 1d12h"),
        (["--deadline", "0h"], "--deadline: '0h'; give a time above 0, such as 8h, 90min or 1d12h"),
        (["--reclaim-every", "3"], "--reclaim-every: '3'; give a time above 0, such as 8h, 90min or 1d12h"),
        (["--worth", "0"], "--worth: 0; give a percentage above 0 and at most 100, such as 2"),
        (
            ["--instance", "m5.large"],
            "--instance: 'm5.large'; give the catalog that has it with --prices, or remove it",
        ),
        (["--region", "x"], "--region: 'x'; give the catalog that has it with --prices, or remove it"),
        (["--spot"], "--spot: given; give the catalog that has spot prices with --prices, or remove it"),
        (["--reclaim-every", "3h", "--replaced-after", "soon"], "--replaced-after: 'soon'; give a time above 0, such"),
        (["--replaced-after", "2min"], "--replaced-after: '2min'; give --reclaim-every too, or remove it"),
        (["--fit", "x", "--measure"], "--measure: given, and --fit too; give one of them"),
        (["--fit", "x", "--network", "paper"], "--network: paper, whose computing is the paper's; give moderate, high"),
        (
            ["--network", "paper", "--deadline", "8h"],
            "--network: paper, which is three networks; give one of them: moderate or high",
        ),
    ],
)
def test_options_that_make_no_sense(run: Run, options: list[str], message: str) -> None:
    code, out, err = run(DIGITS, *options)

    assert (code, out) == (2, "")
    assert err.startswith(message)


@pytest.mark.parametrize(
    ("options", "price"),
    [
        (["--instance", "g4dn.xlarge"], "g4dn.xlarge in us-east-1, on demand: $0.526 per worker and hour"),
        (["--instance", "g4dn.xlarge", "--region", "eu-west-1"], "g4dn.xlarge in eu-west-1, on demand: $0.587 per"),
        (["--instance", "g4dn.xlarge", "--spot"], "g4dn.xlarge in us-east-1, spot: $0.1578 per worker and hour"),
        (["--instance", "g4dn.12xlarge"], "g4dn.12xlarge in us-east-1, on demand: $0.978 per worker and hour"),
        (["--instance", "m5.large", "--reclaim-every", "3h"], "m5.large in us-east-1, spot: $0.04 per worker and hour"),
    ],
)
def test_a_price_of_a_catalog(run: Run, catalog: Path, options: list[str], price: str) -> None:
    """Of the cheapest region, for an accelerator; a reclaimed machine has the spot price."""
    code, out, _ = run(DIGITS, "--network", "high", "--prices", catalog, *options)

    assert code == 0
    assert f"price: {price}" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--instance: missing, and {} has 4; give bad, g4dn.12xlarge, g4dn.xlarge, m5.large"),
        (
            ["--instance", "p5"],
            "--instance: 'p5', which {} does not have; give bad, g4dn.12xlarge, g4dn.xlarge, m5.large",
        ),
        (
            ["--instance", "g4dn.xlarge", "--region", "mars"],
            "--region: 'mars', where {} has no g4dn.xlarge; give eu-west-1, us-east-1",
        ),
        (
            ["--instance", "m5.large"],
            "--prices {}: no Price above 0 for m5.large; give another --instance, or the price",
        ),
        (["--instance", "bad"], "--prices {}: Price of bad is 'cheap'; give a number of at least 0"),
        (["--instance", "bad", "--spot"], "--prices {}: SpotPrice of bad is '-1'; give a number of at least 0"),
        (["--price-per-worker-hour", "1"], "--price-per-worker-hour: 1, and --prices too; give one of them"),
    ],
)
def test_a_price_that_a_catalog_does_not_have(run: Run, catalog: Path, options: list[str], message: str) -> None:
    code, _, err = run(DIGITS, "--network", "high", "--prices", catalog, *options)

    assert code == 2
    assert err.startswith(message.format(catalog))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "cannot be read (no such file or directory)"),
        (b"a,b\n", "no column InstanceType"),
        (b"", "no column InstanceType"),
        (b"\xff\xfe", "no text"),
        (b"InstanceType,Price,SpotPrice\n", "no instance"),
        (b'InstanceType,Price,SpotPrice\nbox,1,"' + b"1" * 140_000, "no CSV (field larger than field limit (131072))"),
        (b"x" * 1025, "more than 1,024 bytes"),
    ],
)
def test_what_is_no_catalog(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None, found: str
) -> None:
    path = tmp_path / "x.csv"
    if found.startswith("more than"):
        monkeypatch.setattr(prices, "LARGEST_BYTES", 1024)
    if text is not None:
        path.write_bytes(text)

    assert run(DIGITS, "--network", "high", "--prices", path)[2].startswith(
        f"--prices {path}: {found}; give a CSV with"
    )


def test_a_catalog_with_one_instance_needs_no_name(run: Run, tmp_path: Path) -> None:
    names = "\n".join(f"i{number},1,," for number in range(6))
    many = tmp_path / "many.csv"
    many.write_text(f"InstanceType,Price,SpotPrice,Region\n{names}\n")
    one = tmp_path / "one.csv"
    one.write_text("InstanceType,Price,SpotPrice\nbox,2,\n", encoding="utf-8-sig")  # as Excel writes it

    assert "price: box in any region, on demand: $2 per" in run(DIGITS, "--network", "high", "--prices", one)[1]
    assert "give one of i0, i1, i2, i3, i4, …" in run(DIGITS, "--network", "high", "--prices", many)[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "{}: no YAML; give stepTime: {{perExample: 0.0006}}, in seconds"),
        ("{}", "{}: stepTime: missing; give {{perExample: 0.0006}}, in seconds"),
        ("7", "{}: the file: 7; give a valid dictionary or instance of ConstantsFile"),
        ("stepTime: {perExample: -1}", "{}: stepTime.perExample: -1; give greater than or equal to 0"),
        ("stepTime: {perExample: true}", "{}: stepTime.perExample: True; give a number"),
        ("stepTime: {perExample: 1, slots: yes}", "{}: stepTime.slots: True; give a number"),
        ("stepTime: {perExample: 1, overhead: [[on, 1]]}", "{}: stepTime.overhead.0.0: True; give a number"),
        ("{stepTime: {perExample: 1}, error: true}", "{}: error: True; give a number"),
        ("stepTime: {perPixel: 1}", "{}: stepTime.perPixel: not known; give stepTime, error and label; stepTime has"),
        ("stepTime: {}", "{}: stepTime: no constant above 0; give perExample, the seconds that an example takes"),
        (
            "stepTime: {slots: 2, wholeBatches: true, loneExchange: true}",
            "{}: stepTime: no constant above 0; give perExample, the seconds that an example takes",
        ),
        (
            "stepTime: {perExample: 1, overhead: [[2, 1], [1, 1]]}",
            "{}: stepTime.overhead: workers [2, 1]; give them in increasing order",
        ),
    ],
)
def test_a_file_of_constants_with_a_fault(run: Run, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    code, _, err = run(DIGITS, "--network", path)

    assert code == 2
    assert err.startswith(message.format(path))


def test_constants_with_which_computing_takes_no_time(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("stepTime: {perDoubling: 0.001}")

    assert run(DIGITS, "--network", path)[2].startswith(
        f"--network: {path}, with which computing takes no time; give stepTime.perExample"
    )


def test_a_file_of_constants_that_is_too_large(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"stepTime: {{perExample: 1}} #{'x' * (1 << 20)}")

    assert run(DIGITS, "--network", path)[2].startswith(f"{path}: more than 1,048,576 bytes; give a file of constants")


def test_a_choice_that_replaces_anothers_block_is_told_of(run: Run) -> None:
    _, _, err = run(DIGITS, "--network", "high", "--set", "batch.growth.type=Constant")

    assert "batch.growth.geometric" in err


def test_a_file_of_constants(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("label: ours\nerror: 0.1\nstepTime: {perUpdate: 1, overhead: [[1, 0.5]]}\n")
    _, out, _ = run(DIGITS, "--network", path, "--json")
    (found,) = json.loads(out)["forecasts"]

    assert (found["label"], found["source"], found["seconds"]["value"]) == ("ours", str(path), 460 * 1.5)


FIT = Constants(
    label="fit", step=StepTime(per_update=1.0, per_group=5.0), draws=(StepTime(per_update=1.1),), source="fitted to x"
)


def test_replicas_that_step_by_themselves_exchange_once_a_round(run: Run, tmp_path: Path) -> None:
    """45 updates per epoch are 6 rounds of at most 8, and with afterUpdates each of the first 90 has an exchange."""
    path = tmp_path / "constants.yaml"
    path.write_text("stepTime: {perExample: 0.001, perGroup: 0.9}")

    def exchanging(exchange: str) -> float:
        settings = [f"exchange={exchange}", "workers={minimum: 2, maximum: 2}", "batch.shard=16", "epochs=4"]
        options = [part for one in [*settings, "batch.growth={type: Constant}"] for part in ("--set", one)]
        (found,) = json.loads(run(DIGITS, "--network", path, "--json", *options)[1])["forecasts"]
        assert found["updates"] == 4 * 45
        return float(found["seconds"]["value"]) - 4 * (44 * 0.016 + 0.015)

    assert exchanging("{type: AllReduce}") == pytest.approx(180 * 0.9, abs=0.02)
    assert exchanging("{type: LocalSGD, localSGD: {replicas: 2}}") == pytest.approx(4 * 6 * 0.9, abs=0.02)
    late = "{type: LocalSGD, localSGD: {replicas: 2, afterUpdates: 90}}"
    assert exchanging(late) == pytest.approx((90 + 2 * 6) * 0.9, abs=0.02)


def test_a_fit_gets_the_exchange_of_a_network(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fitted(*given: Any) -> Constants:
        asked.append(given)
        return FIT

    monkeypatch.setattr(command.pkgutil, "resolve_name", {command.FITTED: fitted}.__getitem__)
    alone = run(DIGITS, "--fit", "x", "--json")[1]
    with_high = run(DIGITS, "--fit", "x", "--network", "high", "--json")[1]

    assert asked[0][0] == [Path("x")]
    seconds = [json.loads(out)["forecasts"][0]["seconds"]["value"] for out in (alone, with_high)]
    assert seconds[0] - seconds[1] > 5 * 15
    assert json.loads(with_high)["forecasts"][0]["source"] == (
        "fitted to x; the exchange is that of the high network of Holt and Sievert, 2021"
    )


def test_a_measured_gradient_scales_the_exchange(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (moderate,) = named("moderate")

    def measured(*given: Any) -> tuple[Constants, int]:
        assert given[1] == (DIGITS.parent, Path.cwd())
        return Constants(label="measured", step=StepTime(per_update=1e-9)), 4 * 2_751_146 * 10

    monkeypatch.setattr(command.pkgutil, "resolve_name", {command.MEASURED: measured}.__getitem__)
    out = run(DIGITS, "--measure", "--network", "moderate", "--set", "workers.minimum=4", "--json")[1]
    (found,) = json.loads(out)["forecasts"]

    assert found["stages"][-1]["secondsPerUpdate"] == pytest.approx(20 * moderate.step.per_doubling)


def test_the_label_of_a_network_changes_nothing(monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path) -> None:
    """The constants of a file hold for the user's own gradient, whatever the user calls the network."""

    def measured(*_: Any) -> tuple[Constants, int]:
        return Constants(label="measured", step=StepTime(per_update=1e-9)), 4

    monkeypatch.setattr(command.pkgutil, "resolve_name", {command.MEASURED: measured}.__getitem__)
    path = tmp_path / "x.yaml"
    path.write_text("label: high\nstepTime: {perGroup: 2}")
    out = run(DIGITS, "--measure", "--network", path, "--set", "workers.minimum=4", "--json")[1]

    assert json.loads(out)["forecasts"][0]["stages"][-1]["secondsPerUpdate"] == pytest.approx(2)


def test_a_forecast_is_drawn_by_the_trainer(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        command.pkgutil, "resolve_name", {command.DRAWN: lambda *given: drawn.append(given)}.__getitem__
    )

    assert run(DIGITS, "--network", "high", "--output", tmp_path / "x.png")[0] == 0
    assert drawn[0][1] == tmp_path / "x.png"


def test_numbers_and_units() -> None:
    assert [number(value) for value in (0.01234, 69.44, 123.44, 1234.5)] == ["0.0123", "69.4", "123.4", "1,234"]
    assert [unit_of(seconds).short for seconds in (299, 301, 43_300)] == ["s", "min", "h"]
    assert Estimated(value=1, low=0.5, high=2).times(2) == Estimated(value=2, low=1, high=4)
