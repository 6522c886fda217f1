"""Mistakes that a GPU reports in its own way, each in a process of its own: some leave the GPU unusable to it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import user_mistakes

from docs.mistakes import read_mistakes

RUN = "from batchgrowth.cli import main; main()"
TOO_LATE = """
from batchgrowth_trainer.workloads.digits import workload as digits


def workload():
    made = digits()
    made.train.tensors[1][700] = 99
    return made
"""


def run(manifest: Path, *changes: str) -> tuple[int, str]:
    """The exit code of `batchgrowth run`, and what it printed in one line."""
    words = [
        sys.executable,
        "-c",
        RUN,
        "run",
        str(manifest),
        "--output-dir",
        str(manifest.parent / "run"),
        "--no-plots",
    ]
    words += [word for change in ("workload.device=CUDA", *changes) for word in ("--set", change)]
    wide = os.environ | {"COLUMNS": "2000"}
    done = subprocess.run(words, env=wide, capture_output=True, text=True, timeout=200, cwd=manifest.parent)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name, mistake in read_mistakes().items() if mistake.needs_gpu])
@pytest.mark.parametrize("exchange", ["SingleProcess", "AllReduce"])
def test_the_error_names_the_remedy(name: str, exchange: str, tmp_path: Path) -> None:
    written = user_mistakes.write(name, tmp_path, exchange)
    code, text = run(written.manifest, *written.changes)

    assert written.error.exit_code == code, text
    assert user_mistakes.missing_in(text, written) == [], text
    assert "Traceback" not in text


@pytest.mark.parametrize(("exchange", "workers"), [("SingleProcess", 1), ("AllReduce", 2), ("GatherScatter", 2)])
def test_a_class_out_of_range_that_comes_late(exchange: str, workers: int, tmp_path: Path) -> None:
    """The GPU reports it at some later call; the job ends, as no other worker would do better."""
    (tmp_path / "late.py").write_text(TOO_LATE)
    manifest = Path(__file__).parents[2] / "examples" / "digits.yaml"
    (tmp_path / "job.yaml").write_text(manifest.read_text())
    code, text = run(
        tmp_path / "job.yaml", "workload.entrypoint=late:workload", "workload.arguments={}", "batch.shard=32",
        f"exchange.type={exchange}", f"workers.minimum={workers}", "workers.examplesPerWorker=16",
        "workers.waitSeconds=60",
    )  # fmt: skip

    assert code == 3, text
    assert "number classes from 0" in text
    assert "Traceback" not in text
