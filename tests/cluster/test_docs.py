"""The commands in docs/kubernetes.md and docs/own-code.md, run as a user types them."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from batchgrowth.contract.progress import Progress
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import make_plan
from real_job import Reader, RealJob, accuracy, said, until, values_of

from cluster import release
from cluster.build import tool
from cluster.local import LocalCluster
from cluster.recipe import APISERVER, TOOLS
from cluster.release import Cluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
OWN_CODE = (ROOT / "docs" / "own-code.md").read_text()
EXAMPLE, SPIRAL = ROOT / "examples" / "digits.yaml", ROOT / "examples" / "spiral"
PAUSE_SECONDS = 0.5
ENDLESS = ("--watch", "port-forward")
LOOK_SECONDS = 6
LONGEST_SECONDS = 300


def commands(section: str, page: str = PAGE) -> list[str]:
    """Returns the commands of a section's console blocks, in order."""
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def shell(installed: Cluster, namespace: str, tmp_path: Path) -> dict[str, str]:
    """A user's environment, with the test's namespace as kubectl's default."""
    kubeconfig = tmp_path / "kubeconfig"
    shutil.copyfile(installed.kubeconfig, kubeconfig)
    kubectl, helm = tool(APISERVER, "kubectl"), tool(TOOLS, "helm")
    words = [kubectl, "--kubeconfig", kubeconfig, "config", "set-context", "--current", "--namespace", namespace]
    subprocess.run(words, check=True, capture_output=True)
    places = [str(kubectl.parent), str(helm.parent), str(Path(sys.executable).parent)]
    own = {f"HELM_{kind}_HOME": str(tmp_path) for kind in ("CACHE", "CONFIG", "DATA")}
    path = os.pathsep.join([*places, os.environ["PATH"]])
    return os.environ | own | {"PATH": path, "KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(tmp_path / "cache")}


def typed(command: str, shell: dict[str, str]) -> str:
    """Returns the command's output; fails if it fails, or if one that should run until Ctrl-C ends."""
    endless = any(word in command for word in ENDLESS)
    line = f"timeout --signal=INT {LOOK_SECONDS} {command}" if endless else command
    words = ("bash", "-euo", "pipefail", "-c", line)
    done = subprocess.run(
        words, cwd=ROOT, env=shell, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS
    )
    assert (124 if endless else 0) == done.returncode, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.operator
def test_installing(installed: Cluster, shell: dict[str, str], tmp_path: Path) -> None:
    """With a user's values file, which names the images; helm's test queries everything that the release installs."""
    images = release.load_images(installed) if isinstance(installed, LocalCluster) else installed.values
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({**images, **values_of(installed)}))  # as the release has them: no pod restarts
    package, install, check = commands("Install")

    assert "dist/batchgrowth-0.1.0.tgz" in typed(package.replace("make", "make --assume-old=.venv/.installed"), shell)
    assert "STATUS: deployed" in typed(install.replace("my-values.yaml", str(values)), shell)
    assert "Phase:          Succeeded" in typed(check, shell)


def test_training(shell: dict[str, str], local_sha256: Callable[[str], str]) -> None:
    """From apply to delete, each command prints what the page says; the weights are those of a run on one machine."""
    apply, watch, wait, describe, sha256, exchange, history, delete = commands("Train")

    typed(apply, shell)
    assert re.search(r"^NAME +STATUS +BATCH +WORKERS +EPOCH +LOSS +PROGRESS +ETA\(S\) +AGE$", typed(watch, shell), re.M)
    typed(wait, shell)
    assert "Finished" in typed(describe, shell)
    assert local_sha256(EXAMPLE.read_text()) == typed(sha256, shell)
    assert json.loads(typed(exchange, shell))["bytesSent"] > 0
    batches = [line.split()[0] for line in typed(history, shell).splitlines()]
    assert ["32", "64", "128", "256", "512"] == list(dict.fromkeys(batches))
    typed(delete, shell)


def test_a_folder_by_a_config_map(shell: dict[str, str], local_sha256: Callable[..., str]) -> None:
    """The weights are those of the modules beside the manifest, and the code goes with the job."""
    submit, wait, sha256, delete = commands("A folder, by a ConfigMap", OWN_CODE)
    code = "kubectl get configmaps --selector batchgrowth.dev/code-of=spiral --output name"

    assert "Submitted spiral to namespace test-" in typed(submit, shell)
    assert 1 == len(typed(code, shell).splitlines())
    typed(wait, shell)
    assert local_sha256((SPIRAL / "job.yaml").read_text(), SPIRAL / "spiral.py") == typed(sha256, shell)
    typed(delete, shell)
    until("the end of the code", lambda: not typed(code, shell), 60)


@pytest.mark.operator
def test_metrics_by_eye(shell: dict[str, str]) -> None:
    """The port is forwarded until Ctrl-C."""
    [forward] = commands("Metrics")

    assert "Forwarding from 127.0.0.1:9090" in typed(forward, shell)


@pytest.mark.alone
@pytest.mark.quiet  # with others beside it the pauses would be theirs
@pytest.mark.usefixtures("reinstalled")
def test_the_demo(local: LocalCluster, reader: Reader, local_sha256: Callable[[str], str]) -> None:
    """README's one command prints the job's columns, and the SHA-256 of the weights of a run on one machine.

    The job is trained by 1, 2 and 4 workers, as planned and as its status says.
    """
    delete = ("delete", "namespace", "demo", "--ignore-not-found")
    said(local.kubectl(*delete))
    words = ("make", "--assume-old=.venv/.installed", "demo")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS)
    digits = RealJob(local.kubectl, reader, "demo", "digits")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert re.search(r"^STATUS +BATCH +WORKERS +EPOCH", done.stdout, re.M)
    assert re.search(r"^Succeeded +512 ", done.stdout, re.M)
    assert local_sha256(EXAMPLE.read_text()) in done.stdout
    trained_as_planned(digits)
    said(local.kubectl(*delete, "--wait=false"))


def trained_as_planned(digits: RealJob) -> None:
    """Checks the status of the example, and what is left of its pods."""
    status = digits.status
    assert "1 2 4" == " ".join(str(count) for count, _ in itertools.groupby(r["workers"] for r in status["history"]))
    stages = make_plan(read_manifest(EXAMPLE.read_text()).spec).stages
    assert [stage.batch_size for stage in stages] == [record["batchSize"] for record in status["history"]]
    pauses = [float(record["pauseSeconds"]) for record in status["history"] if "pauseSeconds" in record]
    assert pauses
    assert max(pauses[1:]) <= PAUSE_SECONDS, pauses  # new pods take seconds; the training does not wait for them
    began = [datetime.fromisoformat(record["startTime"]) for record in status["history"]]
    assert sorted(began) == began
    trained = status["trainerStatus"]
    assert 100 == trained["progressPercentage"]
    assert accuracy(status) > 0.97
    assert not digits.pods("worker"), "a job that is over holds no workers"
    [trainer] = digits.pods("trainer")
    repeated = Progress.from_json(trainer["status"]["containerStatuses"][0]["state"]["terminated"]["message"])
    assert (trained["update"], trained["weightsSha256"]) == (repeated.update, repeated.weights_sha256)
