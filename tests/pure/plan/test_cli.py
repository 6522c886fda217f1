"""The command line: what it prints, its exit codes, and that a user error is never a traceback."""

import io
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import BatchGrowthError, cli
from batchgrowth.choices import INEXACT, REPEATABLE
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plan", EXAMPLES / "table1" / "5120.yaml", "--output", "json")
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert sorted(made) == ["examples", "stages", "updates"]
    assert (made["updates"], made["examples"]) == (14_960, 10_000_000)
    assert made["stages"][2] == {
        "epochFrom": 120,
        "epochTo": 180,
        "batchSize": 5120,
        "learningRate": 0.08,
        "workers": 40,
        "updatesPerEpoch": 10,
        "updates": 600,
    }


def test_plan_as_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = run(capsys, "plan", EXAMPLES / "digits.yaml")
    lines = out.splitlines()
    assert lines[0].split() == ["stage", "epochs", "batch", "learning", "rate", "workers", "updates", "examples"]
    assert lines[6].split() == ["6", "25", "–", "30", "512", "0.025", "4", "15", "16.7%"]
    assert lines[8] == (
        "460 updates for 30 epochs of 1,437 examples; a constant batch of 32 takes 1,350, 2.9 times as many"
    )


def test_plan_notes_what_a_fine_shard_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker computes its shards one after another; a coarse shard costs nothing, so there is no note."""
    monkeypatch.setenv("COLUMNS", "400")
    note = (
        "note: batch.shard 32 is finer than the planned workers can use: each computes 935 shards one after another, "
        "2.0 times as many as with shards of workers.examplesPerWorker, 128."
    )
    assert note in run(capsys, "plan", EXAMPLES / "digits.yaml", "--set", "batch.shard=32")[1]
    for shard in (128, 256):
        assert "finer" not in run(capsys, "plan", EXAMPLES / "digits.yaml", "--set", f"batch.shard={shard}")[1]


def test_plan_of_a_measured_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known before training: the bounds, what is measured, and when; a fine shard is no mistake."""
    monkeypatch.setenv("COLUMNS", "400")
    totals = (
        "at most 1,350 and at least 91 updates for 30 epochs of 1,437 examples; the batch grows from 32 to 512 at "
        "most, as training measures its noise scale "
    )
    path = EXAMPLES / "digits-measured.yaml"
    _, out, _ = run(capsys, "plan", path)
    assert totals + "at the end of each epoch" in out
    assert "note" not in out
    changed = "batch.growth={type: NoiseScale, looks: {everyUpdates: 1200}}"
    assert totals + "every 1,200 updates" in run(capsys, "plan", path, "--set", changed)[1]
    rarely = "batch.growth={type: NoiseScale, looks: {everyEpochs: 2}}"
    assert totals + "every 2 epochs" in run(capsys, "plan", path, "--set", rarely)[1]
    assert f"{path}: good; batches by the noise scale, at most 1,350 updates\n" == run(capsys, "check", path)[1]


def test_a_rule_that_looks_at_a_clock_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    note = "note: Goodput looks at a clock, so another run may decide otherwise and end with other weights. "
    path = ROOT / "tests/corpus/good/measured-goodput.yaml"
    assert f"\n{path}: {note}" in run(capsys, "check", path)[1]
    assert f"\n{note}" in run(capsys, "plan", path)[1]
    assert "clock" not in run(capsys, "plan", EXAMPLES / "digits-measured.yaml")[1]


DIFFERING = [(f"of exchange {name}", {"exchange": {"type": name}}) for name in INEXACT if name not in REPEATABLE]


@pytest.mark.parametrize(
    ("whose", "changes"), [*DIFFERING, ("that a GPU computes with deterministic: false", {"deterministic": False})]
)
def test_a_job_whose_weights_differ_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whose: str, changes: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    job = yaml.safe_load((EXAMPLES / "digits.yaml").read_text())
    path, note = tmp_path / "job.yaml", "differ from run to run, even on the same machine"
    path.write_text(yaml.safe_dump(job))
    assert note not in run(capsys, "check", path)[1] + run(capsys, "plan", path)[1]
    job["spec"] |= changes
    path.write_text(yaml.safe_dump(job))
    note = f"note: the weights {whose} {note}"
    assert f"\n{path}: {note}" in run(capsys, "check", path)[1]
    assert f"\n{note}" in run(capsys, "plan", path)[1]


def test_the_kernels_of_a_cpu_are_deterministic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the promise stays, and the workers are checked; the note says that the setting changes nothing."""
    monkeypatch.setenv("COLUMNS", "400")
    cpu = ("--set", "workload.device=CPU", "--set", "deterministic=false")
    printed = run(capsys, "plan", EXAMPLES / "digits.yaml", *cpu)[1]
    assert "deterministic: false changes nothing on device CPU" in printed
    assert "differ from run to run" not in printed


def test_check_holds_the_pods_against_the_standard_of_the_cluster(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What only `restricted` forbids is good on a cluster with `baseline`; an account depends on the installation."""
    job = yaml.safe_load((EXAMPLES / "digits.yaml").read_text())
    job["spec"]["serviceAccountName"] = "reader"
    job["spec"]["workers"]["template"] = {"spec": {"securityContext": {"runAsUser": 0}}}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    field = "spec.workers.template.spec.securityContext.runAsUser"

    code, _, err = run(capsys, "check", path)
    assert (2, f'{field}: 0; give another user, Pod Security "restricted" requires it\n') == (code, err)
    code, out, _ = run(capsys, "check", "--pod-security", "baseline", path)
    note = 'note: spec.serviceAccountName "reader" is refused unless the chart\'s value jobs.serviceAccounts lists it.'
    assert (0, f"{path}: {note}") == (code, out.splitlines()[1])


RUN_HEADER = "update,epoch,value,wanted,batchSize"


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    """A function: the folder of a run of examples/digits-measured.yaml with these rows in growth.csv."""

    def folder(*rows: str) -> Path:
        shutil.copy(EXAMPLES / "digits-measured.yaml", tmp_path / "job.yaml")
        (tmp_path / "growth.csv").write_text("".join(f"{row}\n" for row in (RUN_HEADER, *rows)))
        return tmp_path

    return folder


def test_plan_as_a_run_decided(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recorded: Callable[..., Path]
) -> None:
    """Each stage has the value that decided it; a look that changed nothing makes no stage."""
    monkeypatch.setenv("COLUMNS", "120")
    folder = recorded("45,1,6.25,32,32", "90,2,244.5,64,64", "113,3,inf,128,128")
    code, out, _ = run(capsys, "plan", "--as", folder)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split()[-3:] == ["examples", "noise", "scale"]
    assert lines[1].split()[1:] == ["0", "–", "2", "32", "0.05", "1", "90", "6.7%"]
    assert lines[2].split()[1:] == ["2", "–", "3", "64", "0.05", "1", "23", "3.3%", "244.5"]
    assert lines[3].endswith("90.0%  too large to measure")
    assert "437 updates for 30 epochs of 1,437 examples; a constant batch of 32 takes 1,350, 3.1 times" in out
    assert lines[-1] == "the noise scale changed the batch 2 times, last at update 113"

    _, out, _ = run(capsys, "plan", "--as", folder, "--output", "json")
    stages = json.loads(out)["stages"]
    assert [(one["batchSize"], one.get("measured")) for one in stages] == [(32, None), (64, 244.5), (128, None)]


def test_plan_as_a_run_that_changed_nothing(capsys: pytest.CaptureFixture[str], recorded: Callable[..., Path]) -> None:
    out = run(capsys, "plan", "--as", recorded("45,1,6.25,32,32"))[1]
    assert "the noise scale has not changed the batch" in out
    assert "at most" not in out
    out = run(capsys, "plan", "--as", recorded("45,1,6.25,64,64"))[1]
    assert "the noise scale changed the batch once, last at update 45" in out


def test_plan_as_a_run_with_other_settings(capsys: pytest.CaptureFixture[str], recorded: Callable[..., Path]) -> None:
    """Those that leave the weights alone, from --set or another manifest; the others are refused."""
    folder, manifest = recorded("45,1,6.25,256,256"), EXAMPLES / "digits-measured.yaml"
    json_of = "--output", "json", "--as", folder, "--set"
    workers = [json.loads(run(capsys, "plan", *json_of, f"workers.maximum={most}")[1])["stages"][1]["workers"]
               for most in (1, 2)]  # fmt: skip
    assert workers == [1, 2]
    code, _, err = run(capsys, "plan", manifest, *json_of, "epochs=4")
    assert (2, f"{manifest}: another job than that of {folder} (epochs: 30 there, 4 here); undo the change\n") == (
        code,
        err,
    )
    code, _, err = run(capsys, "plan", *json_of, "epochs=4")
    assert err.startswith("--set: another job than that of ")


def test_plan_needs_a_manifest_or_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "plan")
    assert code == 2
    assert "give a manifest, or --as with the output folder of a run" in " ".join(err.replace("│", " ").split())
    assert (4, f"{tmp_path}: there is no job.yaml here; name the --output-dir of a run\n") == (
        run(capsys, "plan", "--as", tmp_path)[::2]
    )


def test_plan_takes_changes(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "plan", EXAMPLES / "digits.yaml", "--set", "batch.maximum=32", "--set", "epochs=1")
    assert "45 updates for 1 epoch of 1,437 examples; the batch stays at 32" in out
    code, _, err = run(capsys, "plan", EXAMPLES / "digits.yaml", "--set", "epochs=0")
    assert (code, err) == (2, "spec.epochs: 0; give a whole number from 1 to 1000000\n")


def test_a_long_plan_shows_its_ends(capsys: pytest.CaptureFixture[str]) -> None:
    growth = "batch.growth={type: Linear, linear: {examplesPerUpdate: '1', everyUpdates: 3}}"
    _, out, _ = run(capsys, "plan", EXAMPLES / "digits.yaml", "--set", growth)
    lines = out.splitlines()
    assert 40 + 1 + 1 + 2 <= len(lines) <= 56
    assert lines[2].split()[:5] == ["2", "0.07", "–", "0.14", "35"]
    assert any(line.split()[:1] == ["…"] for line in lines)


@pytest.mark.fault("N08")
def test_the_plan_shows_the_warm_up(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table the first and the last rate of a stage, and the highest if it lies between; likewise in the JSON."""
    monkeypatch.setenv("COLUMNS", "120")
    warm = ("--set", "learningRate.warmup={updates: 300}")
    rows = run(capsys, "plan", EXAMPLES / "digits.yaml", *warm)[1].splitlines()[1:4]
    assert [" ".join(row.split()[5:-3]) for row in rows] == ["0.000166667 → 0.0375", "0.0376667 → 0.05", "0.05"]

    falling = (*warm, "--set", "learningRate.schedule={type: Linear}", "--set", "batch.growth={type: Constant}")
    row = run(capsys, "plan", EXAMPLES / "digits.yaml", *falling)[1].splitlines()[1]
    assert " ".join(row.split()[5:-3]) == "0.000166667 → 0.04 → 0.00166667"
    stage = json.loads(run(capsys, "plan", EXAMPLES / "digits.yaml", "--output", "json", *falling)[1])["stages"][0]
    rates = {name: round(stage[name], 6) for name in stage if name.startswith("learningRate")}
    assert rates == {"learningRate": 0.000167, "learningRateTo": 0.001667, "learningRateHighest": 0.04}


def test_the_plan_that_operator_and_trainer_compare_has_no_warm_up() -> None:
    """It stays as it was, so that images of an older version agree with it."""
    example = EXAMPLES / "digits.yaml"
    warm = load_manifest(example, ["learningRate.warmup={updates: 300}"]).spec
    assert make_plan(warm).to_json() == make_plan(load_manifest(example).spec).to_json()


@pytest.mark.fault("N08")
def test_the_plan_shows_how_far_a_gain_may_go(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    gaining = ("--set", "learningRate.rule=AdaScale", "--set", "batch.maximum=512")
    rows = run(capsys, "plan", EXAMPLES / "digits.yaml", *gaining)[1].splitlines()[1:3]
    assert [" ".join(row.split()[5:-3]) for row in rows] == ["0.05", "0.05 × 1 – 2"]
    stages = json.loads(run(capsys, "plan", EXAMPLES / "digits.yaml", "--output", "json", *gaining)[1])["stages"]
    assert [stage.get("gainTo") for stage in stages] == [None, 2, 4, 8, 16]


def test_a_plan_is_drawn_by_the_trainer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(cli, "DRAWN", "json:drawn")
    monkeypatch.setattr(json, "drawn", lambda course, path: drawn.append((course.plan.updates, path)), raising=False)
    code, out, _ = run(capsys, "plan", EXAMPLES / "digits.yaml", "--plot", tmp_path / "plan.svg")
    assert (code, drawn) == (0, [(460, tmp_path / "plan.svg")])
    assert "460 updates" in out


@pytest.mark.fault("N13")
def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"batchgrowth {version('batchgrowth')}\n", "")


@pytest.mark.fault("N13")
def test_one_is_not_many(capsys: pytest.CaptureFixture[str]) -> None:
    one = ("--set", "epochs=1", "--set", "workload.examples=32", "--set", "batch.maximum=32")
    assert "1 update for 1 epoch of 32 examples" in run(capsys, "plan", EXAMPLES / "digits.yaml", *one)[1]
    out = run(capsys, "check", ROOT / "tests/corpus/good/smallest.yaml")[1]
    assert ": good; 1 stage, " in out


@pytest.mark.fault("N13")
@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_manifest_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def given(text: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

    given((EXAMPLES / "digits.yaml").read_bytes())
    code, out, err = run(capsys, command, "-")
    assert (code, "460 updates" in out, err) == (0, True, "")
    given(b"nonsense")
    assert run(capsys, command, "-")[::2] == (
        2,
        "standard input: not a map of fields; begin with apiVersion, kind and metadata\n",
    )


@pytest.mark.fault("N07")
def test_check_and_plan_print_the_notes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    path = ROOT / "tests/corpus/good/schedule-cosine-ends-early.yaml"
    job = yaml.safe_load(path.read_text())
    job["spec"] |= {"workers": {"minimum": 4, "maximum": 4, "examplesPerWorker": 128}}
    text = yaml.safe_dump(job).encode()
    note = "note: spec.workers.minimum: 4 requests 4 workers in stage 1"
    for command, prefix in (("check", "-: "), ("plan", "")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert f"\n{prefix}{note}" in run(capsys, command, "-")[1]


def test_a_plan_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plan", ROOT / "tests/corpus/bad/linear-too-many-stages.yaml")
    assert (code, out) == (2, "")
    assert err.startswith("spec.batch.growth.linear.everyUpdates: 1 makes a plan of more than 1000 stages; ")


def test_crd(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "crd")
    assert (0, (ROOT / "crds" / "batchgrowthjobs.yaml").read_text()) == (code, out)


@pytest.mark.parametrize("arguments", [("check", "nowhere.yaml"), ("plan", "nowhere.yaml")])
def test_a_missing_file(capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]) -> None:
    code, out, err = run(capsys, *arguments)
    expected = "nowhere.yaml: cannot be read (no such file or directory); give the path of a manifest\n"
    assert (code, out, err) == (2, "", expected)


def found(*entries: EntryPoint) -> object:
    """`entry_points` of an installation that has only these."""
    return lambda group: entries if group == cli.COMMANDS else ()


def test_a_command_of_another_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its entry point; json.tool:main stands in for it."""
    entry = EntryPoint("dump", "json:dumps", cli.COMMANDS)
    loaded = []
    monkeypatch.setattr(cli, "entry_points", found(entry))
    monkeypatch.setattr(cli, "add_command", loaded.append)
    run(capsys, "check", EXAMPLES / "digits.yaml")
    assert loaded == []
    run(capsys, "dump")
    run(capsys, "--help")
    assert [entry, entry] == loaded


def test_the_trainer_is_asked_for_where_it_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "entry_points", found(EntryPoint("gone", "no_such_package.commands:run", cli.COMMANDS)))
    code, out, err = run(capsys, "gone", "job.yaml", "--workers", "3")
    assert (code, out) == (1, "")
    assert err.startswith(
        "batchgrowth gone needs the trainer: pip install 'batchgrowth[trainer]'; no_such_package is not"
    )


def test_each_command_of_another_part_has_an_extra() -> None:
    """The names in ROOMS are those of the entry points, and the extras those of the project."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]

    assert sorted(project["entry-points"][cli.COMMANDS]) == sorted(cli.ROOMS)
    assert set(cli.ROOMS.values()) <= set(project["optional-dependencies"])


def test_an_installed_command_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "entry_points", found(EntryPoint("again", "batchgrowth.cli:crd", cli.COMMANDS)))
    code, out, _ = run(capsys, "again")
    assert code == 0
    assert out.startswith("# Generated by")


def test_main_reads_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["batchgrowth", "check", str(EXAMPLES / "digits.yaml")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "good" in capsys.readouterr().out


def test_check_loads_no_torch() -> None:
    code = (
        "import sys; from batchgrowth import cli\n"
        "try: cli.main(['check', sys.argv[1]])\n"
        "except SystemExit as end: sys.exit(end.code or ('torch' in sys.modules) * 9)"
    )
    subprocess.run([sys.executable, "-c", code, EXAMPLES / "digits.yaml"], check=True, capture_output=True)


def test_every_error_has_its_exit_code() -> None:
    def tree(error: type[BatchGrowthError]) -> dict[str, int]:
        codes = {error.__name__: error.exit_code}
        for child in error.__subclasses__():
            codes |= tree(child)
        return codes

    assert {
        "BatchGrowthError": 1,
        "SpecError": 2,
        "PlanError": 2,
        "WorkloadError": 3,
        "DataError": 4,
        "CheckpointError": 5,
        "StorageError": 75,
        "PortError": 6,
        "ClusterError": 75,
        "Interrupted": 130,
    }.items() <= tree(BatchGrowthError).items()


@pytest.mark.fault("N11")
def test_a_choice_that_replaces_a_block_is_said_beside_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("plan", EXAMPLES / "digits.yaml", "--set", "optimizer.type=Adam", "--output", "json")
    code, out, err = run(capsys, *chosen)
    assert (code, err) == (0, "note: optimizer.sgd of the manifest is left out: optimizer.type is now Adam\n")
    assert json.loads(out)["updates"] == 460
