"""Every command in the README and in docs/growth.md does what the page says."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone, with the environment of this one."""
    target = tmp_path_factory.mktemp("readme") / "checkout"
    shutil.copytree(ROOT / "examples", target / "examples")
    shutil.copy(ROOT / "Makefile", target)
    shutil.copy(ROOT / "pyproject.toml", target)
    shutil.copy(ROOT / "requirements.lock", target)
    (target / ".venv").symlink_to(ROOT / ".venv")
    return target


def run(command: str, checkout: Path) -> str:
    """The output of the command; `make` counts the environment as installed."""
    command = re.sub(r"^make ", "make --assume-old=.venv/.installed ", command)
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        command, shell=True, cwd=checkout, env=environment, capture_output=True, text=True, timeout=480, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


ELSEWHERE = {"make test", "make demo"}
"""The first runs tests such as this one; the second needs a real cluster, and tests/cluster/test_docs.py runs it."""


@pytest.mark.timeout(1500)
def test_every_command_works_in_the_order_of_the_page(checkout: Path) -> None:
    """And the first one trains the digits job as promised."""
    assert (ROOT / ".venv" / ".installed").exists(), "make install makes it"
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert ELSEWHERE <= set(commands)

    printed = {command: run(command, checkout) for command in commands if command not in ELSEWHERE}

    assert commands[0] == "make run"
    assert "workers 1 → 2 → 4" in printed["make run"]
    assert float(re.findall(r"test accuracy ([\d.]+)", printed["make run"])[-1]) >= 0.97
    for name in ("summary.json", "history.csv", "plot.png", "plot.html", "model.safetensors", "checkpoints"):
        assert (checkout / "runs" / "digits" / name).exists()
    assert (checkout / "runs" / "compared.png").exists()
    assert "is trained already" in run("make run", checkout)


CHANGE = r"update (\d+): batch \d+ → (\d+), noise scale (\d+)"


@pytest.mark.timeout(900)
def test_the_commands_of_measured_growth_work_in_their_order(checkout: Path) -> None:
    """The run prints such a line as the page quotes; the plan as the run and its manifest have that decision."""
    page = (ROOT / "docs" / "growth.md").read_text(encoding="utf-8")
    first = re.findall(r"```console\n(.*?)```", page, re.DOTALL)[0]
    *_, trained, planned, declared = [run(line.removeprefix("$ "), checkout) for line in first.splitlines()]

    assert re.search(f"`{CHANGE}`", page)
    update, batch, value = re.findall(CHANGE, trained)[-1]
    assert re.search(rf"\b{batch} .* {value}$", planned, re.MULTILINE)
    assert f"- update: {update}\n          batchSize: {batch}\n" in declared


@pytest.mark.smoke
def test_the_printed_plan_is_the_plan(checkout: Path) -> None:
    """The table on the page is what the command prints."""
    shown = [line.rstrip() for line in blocks("text")[0].strip().splitlines()]
    printed = run(".venv/bin/batchgrowth plan examples/digits.yaml", checkout).strip().splitlines()

    assert shown == [line.rstrip() for line in printed]


@pytest.mark.smoke
def test_the_manifest_on_the_page_makes_the_plan_of_the_example(checkout: Path) -> None:
    """The shortened manifest plans as examples/digits.yaml does."""
    (checkout / "page.yaml").write_text(blocks("yaml")[0])

    page = run(".venv/bin/batchgrowth plan page.yaml --output json", checkout)

    assert run(".venv/bin/batchgrowth plan examples/digits.yaml --output json", checkout) == page
