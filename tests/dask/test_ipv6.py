"""A machine with IPv6 alone: a network namespace whose loopback interface has no IPv4 address."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan
from batchgrowth_trainer.worker.addresses import bracketed, host_and_port, host_towards

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
FEW = ("epochs=2", "batch.initial=128", "batch.shard=32", "workers.examplesPerWorker=32", "workers.maximum=2")
WITHOUT_IPV4 = "ip link set lo up && ip -4 addr del 127.0.0.1/8 dev lo"


@pytest.fixture
def alone() -> list[str]:
    """The beginning of a command that runs the rest of it in such a namespace."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    command = ["unshare", "--net", "sh", "-c", f'{WITHOUT_IPV4} && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root, and a kernel with network namespaces and IPv6")
    return command


def trained(folder: Path, *before: str) -> str:
    """What `batchgrowth run` prints while it trains for two epochs with two workers."""
    overrides = [word for change in FEW for word in ("--set", change)]
    command = [str(Path(sys.executable).with_name("batchgrowth")), "run", str(DIGITS), *overrides]
    done = subprocess.run(
        [*before, *command, "--no-plots", "--output-dir", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sha256_in(text: str) -> str:
    return text.rpartition("weights SHA-256 ")[2].split()[0]


@pytest.mark.fault("O28")
def test_a_machine_with_ipv6_alone_trains_the_same(alone: list[str], tmp_path: Path) -> None:
    assert max(stage.workers for stage in make_plan(load_manifest(DIGITS, list(FEW)).spec).stages) == 2
    there = trained(tmp_path / "there", *alone)

    assert "metrics at http://[::1]:" in there
    assert sha256_in(trained(tmp_path / "here")) == sha256_in(there)


@pytest.mark.parametrize(("scheduler", "host"), [("tls://[::1]:8786", "::1"), ("tcp://127.0.0.1:8786", "127.0.0.1")])
def test_an_interface_towards_a_scheduler(scheduler: str, host: str) -> None:
    assert host_towards(scheduler) == host
    assert f"{bracketed(host)}:8786" == scheduler.split("://")[1]
    assert host_and_port(scheduler) == (host, 8786)
