"""The commands of docs/probe.md, and the block of a manifest on it."""

import json
import re
import shlex
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from batchgrowth import cli
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_of_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], logs_as_before: None
) -> None:
    """The first trains the run that the second probes."""
    entries = [EntryPoint(name, f"batchgrowth_trainer.commands:{name}", cli.COMMANDS) for name in ("run", "probe")]
    monkeypatch.setattr(cli, "entry_points", lambda group: entries)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (commands,) = blocks("sh")
    faster = {"run": ["--no-plots"], "probe": ["--orders", "1"]}
    for line in commands.splitlines():
        _, command, *arguments = shlex.split(line)
        with pytest.raises(SystemExit) as ended:
            cli.main([command, *arguments, *faster[command]])
        printed = capfd.readouterr().out
        assert ended.value.code == 0

    assert printed.startswith(
        "from update 90, epoch 2, where the run has a batch of 32; each branch takes 4,311 examples"
    )
    assert "\ncritical batch: " in printed
    assert "\nbatch:\n  initial: 32\n  maximum: 512\n" in printed


def test_the_block_of_the_page_is_one() -> None:
    (text,) = blocks("yaml")
    batch = yaml.safe_load(text)["batch"]
    job = load_manifest(ROOT / "examples" / "digits.yaml", [f"batch={json.dumps(batch)}"])

    assert [(stage.first_update, stage.batch_size) for stage in make_plan(job.spec).stages] == [(0, 32), (90, 64)]
