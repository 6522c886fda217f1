"""A machine with IPv6 alone: a network namespace whose loopback interface has no IPv4 address."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan
from batchgrowth_trainer.worker.addresses import bracketed, host_and_port, host_towards

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
FEW = ("epochs=2", "batch.initial=128", "batch.shard=32", "workers.examplesPerWorker=32", "workers.maximum=2")
GROWS = (
    "epochs=3",
    "batch={initial: 64, maximum: 256, shard: 32, growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 1}}}",
    "workers={examplesPerWorker: 64, maximum: 3}",
    "exchange.timeoutSeconds=20",
)
HIDDEN = "workload.arguments={hidden: '8'}"
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)"


def trained(folder: Path, *before: str) -> str:
    """What `batchgrowth run` prints while it trains for two epochs with two workers."""
    overrides = [word for change in FEW for word in ("--set", change)]
    command = [str(Path(sys.executable).with_name("batchgrowth")), "run", str(DIGITS), *overrides]
    return output([*before, *command, "--no-plots", "--output-dir", str(folder)])


def output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sha256_in(text: str) -> str:
    return text.rpartition("weights SHA-256 ")[2].split()[0]


@pytest.mark.fault("O28")
def test_a_machine_with_ipv6_alone_trains_the_same(without_ipv4: list[str], tmp_path: Path) -> None:
    assert max(stage.workers for stage in make_plan(load_manifest(DIGITS, list(FEW)).spec).stages) == 2
    there = trained(tmp_path / "there", *without_ipv4)

    assert "metrics at http://[::1]:" in there
    assert sha256_in(trained(tmp_path / "here")) == sha256_in(there)


@pytest.mark.fault("O28")
def test_pods_with_ipv6_alone_train_the_same(
    pods_without_ipv4: Any, digits_job: Any, digits_weights: Callable[..., str], tmp_path: Path
) -> None:
    """While the batch grows, three workers join and one is killed; they find their addresses, and probes find them."""
    pods = pods_without_ipv4
    slowed = tmp_path / "slowed"
    slowed.touch()
    arguments = f"workload.arguments={{seconds: '0.5', mark: '{slowed}'}}"
    job = digits_job(*GROWS, "workload.entrypoint=slow_digits:workload", arguments)
    assert 3 == max(stage.workers for stage in make_plan(job.spec).stages)
    pods.scheduler()
    first = pods.worker()
    trainer = pods.trainer(job)
    pods.until(lambda: pods.is_trained_by(1))
    for _ in range(2):
        pods.worker()
    pods.until(lambda: pods.is_trained_by(3))

    probed = output([*pods.before, sys.executable, "-c", ASK, f"http://[::1]:{pods.health_port}/health"])
    first.kill()
    slowed.unlink()

    assert "200" == probed.strip()
    assert trainer.wait(timeout=120) == 0
    assert pods.check(digits_weights(tmp_path / "alone", *GROWS, HIDDEN))["recoveries"] > 0


@pytest.mark.fault("O28")
def test_a_scheduler_whose_name_is_not_known_yet(without_ipv4: list[str]) -> None:
    """A worker that starts before its scheduler's service announces the address of its own pod."""
    look = "from batchgrowth_trainer.worker.addresses import interface_towards as look; print(look('nobody.invalid'))"

    assert "fd00::7" == output([*without_ipv4, sys.executable, "-c", look]).strip()


@pytest.mark.parametrize(("scheduler", "host"), [("tls://[::1]:8786", "::1"), ("tcp://127.0.0.1:8786", "127.0.0.1")])
def test_an_interface_towards_a_scheduler(scheduler: str, host: str) -> None:
    assert host_towards(scheduler) == host
    assert f"{bracketed(host)}:8786" == scheduler.split("://")[1]
    assert host_and_port(scheduler) == (host, 8786)
