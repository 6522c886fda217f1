"""compile: true: two workers end with the weights of one process, also if one is killed and the run is resumed."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

OVERRIDES = (
    "compile=true",
    "precision=BFloat16",
    "epochs=3",
    "batch={initial: 128, maximum: 128, shard: 32, growth: {type: Constant}}",
    "workers={maximum: 2, waitSeconds: 600, examplesPerWorker: 64}",
    "checkpoint.everySeconds=1",
)


@pytest.mark.long  # the compiler needs both processors for minutes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("disturbed", [False, True], ids=["undisturbed", "disturbed"])
def test_the_same_weights(
    start: Callable[..., Any],
    digits_weights: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disturbed: bool,
) -> None:
    """With dropout and batch norm, and a last shard of each epoch that is smaller. Other weights than without it.

    All processes share one cache, or this would take minutes.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    small = "workload.arguments={hidden: '8'}"
    expected = digits_weights(tmp_path / "alone", *OVERRIDES, small)
    assert expected != digits_weights(tmp_path / "interpreted", *OVERRIDES, small, "compile=false")
    names = [load_file(tmp_path / run / "model.safetensors").keys() for run in ("alone", "interpreted")]
    assert names[0] == names[1]

    job = Path(__file__).parents[2] / "examples" / "digits.yaml"
    seconds = "0.1" if disturbed else "0"  # a shard takes longer, so that the run does not end before
    slow = f"workload={{entrypoint: 'slow_digits:workload', examples: 1437, arguments: {{seconds: '{seconds}'}}}}"
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "user_code"), prepend=":")
    sets = [part for override in (*OVERRIDES, slow) for part in ("--set", override)]
    run = start(job, *sets)
    if disturbed:
        run.until(lambda: run.updates() >= 3)
        run.workers()[0].kill()
        run.until(lambda: run.updates() >= 6 and list((run.folder / "checkpoints").glob("update-*")))
        run.kill(signal.SIGINT)
        run.wait()
        run = start(job, *sets, "--resume", folder=run.folder)
    assert run.wait() == 0, run.text
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["weightsSha256"] == expected
    assert disturbed == ("resumed" in (run.folder / "journal.jsonl").read_text())
    assert summary["arithmetic"]["differing"] == []
