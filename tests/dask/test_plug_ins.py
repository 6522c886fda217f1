"""A growth rule and an exchange from another distribution, each of one module, are found everywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PLUG_IN = Path(__file__).parent / "plug_in"
CHOSEN = ("--set", "batch.growth={type: Stairs, stairs: {everyEpochs: 1}}", "--set", "exchange.type=Relay")


def with_plug_in(program: str | Path, *arguments: str | Path) -> str:
    """What a program prints when the distribution is installed. Raises AssertionError if it fails."""
    environment = os.environ | {"PYTHONPATH": str(PLUG_IN), "COLUMNS": "200", "CI": ""}
    done = subprocess.run(
        [program, *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def batchgrowth(*arguments: str | Path) -> str:
    return with_plug_in(Path(sys.executable).with_name("batchgrowth"), *arguments)


def test_the_crd_has_both() -> None:
    schema = yaml.safe_load(batchgrowth("crd"))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = schema["properties"]["spec"]["properties"]
    growth = spec["batch"]["properties"]["growth"]

    assert "Stairs" in growth["properties"]["type"]["enum"]
    assert growth["properties"]["stairs"]["required"] == ["everyEpochs"]
    assert {"(self.type == 'Stairs') == has(self.stairs)"} <= {r["rule"] for r in growth["x-kubernetes-validations"]}
    assert "Relay passes gradients on" in spec["exchange"]["properties"]["type"]["description"]


def test_help_and_the_documentation_have_both() -> None:
    help_text = batchgrowth("run", "--help")
    page = with_plug_in(sys.executable, "-c", "from docs.generate import choices_page; print(choices_page())")

    assert "Stairs" in help_text
    assert "Relay" in help_text
    assert "| `Stairs` | climbs by batch.initial every few epochs | `everyEpochs` |" in page
    assert "| `Relay` | passes gradients on as a relay team does |" in page


def test_a_plan_follows_the_rule() -> None:
    plan = json.loads(batchgrowth("plan", "examples/digits.yaml", *CHOSEN, "--set", "epochs=3", "--output", "json"))

    assert [stage["batchSize"] for stage in plan["stages"]] == [32, 64, 96]


@pytest.mark.usefixtures("nothing_left_behind")
def test_both_train_to_the_weights_of_one_process(tmp_path: Path) -> None:
    def weights(folder: str, *exchange: str) -> str:
        out = tmp_path / folder
        batchgrowth("run", "examples/digits.yaml", *CHOSEN, "--set", "epochs=3", "--set", "batch.shard=16", "--workers",
                    "2", "--no-plots", "--output-dir", out, *exchange)  # fmt: skip
        return str(json.loads((out / "summary.json").read_text())["weightsSha256"])

    assert weights("alone", "--exchange", "SingleProcess") == weights("relay")


def test_the_contract_tests_take_them_in() -> None:
    growth = with_plug_in(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/pure/plan/test_growth.py", "-k", "Stairs"
    )
    collected = with_plug_in(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "tests/dask/test_same_weights.py",
        "-k",
        "Relay",
    )

    assert "1 passed" in growth
    assert "test_any_schedule_of_workers[" in collected
    assert "test_a_cap_on_the_workers[" in collected
