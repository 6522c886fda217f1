"""The operator, the CRD and the trainer of this checkout beside those of earlier versions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth.errors import Interrupted
from operator_field import CLUSTER, JOB, PATIENCE_SECONDS, PLAN, ROOT, TRAINER, WORKERS, Field, until
from versions import VERSIONS, paths, unpacked

from cluster.apiserver import ApiServer

pytestmark = pytest.mark.history

CRD = Path("crds", "batchgrowthjobs.yaml")
SHORT = {"growth": {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 3}}}
"""The growth of a job of six epochs."""
PODS = {TRAINER: ("spec", "template"), CLUSTER: ("spec",), WORKERS: ("spec", "template")}
"""The children that run pods, and where they describe them."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the tree of a version by its name; `this` is this checkout."""
    made = {"this": ROOT}

    def tree(version: str) -> Path:
        if version not in made:
            made[version] = unpacked(VERSIONS[version], tmp_path_factory.mktemp(version))
        return made[version]

    return tree


class Operators:
    """Processes of `batchgrowth operator` in one namespace, of any version, one at a time."""

    def __init__(self, ground: Field, log: Path, trees: Callable[[str], Path]) -> None:
        self._ground, self._log, self._trees = ground, log, trees
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, version: str) -> None:
        """Stops the operator that runs, and starts one of that version."""
        self.stop()
        command = [sys.executable, "-m", "batchgrowth_operator", "--image", "example/trainer:1",
            "--kubeconfig", str(self._ground.kubeconfig), "--namespace", self._ground.namespace]  # fmt: skip
        with self._log.open("ab") as log:
            self._running = start(command, self._trees(version), stdout=log, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        if self._running is not None:
            self._running.terminate()
            assert self._running.wait(20) == 0, self._log.read_text()
            self._running = None


def start(command: list[str], tree: Path, **options: Any) -> subprocess.Popen[bytes]:
    """A process with the packages of that tree."""
    return subprocess.Popen(command, cwd="/", env={**os.environ, "PYTHONPATH": paths(tree)}, **options)


@pytest.fixture
def ground(make_field: Callable[[], Field]) -> Field:
    """A new namespace without an operator."""
    return make_field()


@pytest.fixture
def operators(ground: Field, tmp_path: Path, trees: Callable[[str], Path]) -> Iterator[Operators]:
    made = Operators(ground, tmp_path / "operator.log", trees)
    yield made
    made.stop()


@pytest.fixture
def use_crd(apiserver: ApiServer, trees: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., None]]:
    """A function that applies the CRD of a version; this checkout's is there again after the test.

    The CRD that it applies does not know the fields of the status that it is given.
    """

    def use(version: str, *unknown: str) -> None:
        crd = yaml.safe_load((trees(version) / CRD).read_text())
        for each in crd["spec"]["versions"]:
            for name in unknown:
                del each["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][name]
        (tmp_path / "crd.json").write_text(json.dumps(crd))
        applied = apiserver.kubectl("apply", "-f", tmp_path / "crd.json")
        assert applied.returncode == 0, applied.stderr

    yield use
    use("this")


def train(ground: Field, update: int) -> None:
    """The trainer reports, and the operator that runs has read it."""
    ground.report(update)
    until(lambda: (ground.get(JOB)["status"].get("trainerStatus") or {}).get("update"), update)
    ground.rest()


def identities(ground: Field) -> dict[Any, str]:
    return {ref: ground.get(ref)["metadata"]["uid"] for ref in [*PODS, PLAN]}


def pods(ground: Field) -> dict[Any, Any]:
    """What the children say of their pods."""
    found = {}
    for ref, path in PODS.items():
        found[ref] = ground.get(ref)
        for key in path:
            found[ref] = found[ref][key]
    return found


@pytest.mark.fault("B05")
@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_and_a_roll_back(
    ground: Field, operators: Operators, use_crd: Callable[..., None], version: str
) -> None:
    """No child is recreated, a trainer's pod stays as it is, the job goes on, and each operator comes to rest."""
    use_crd(version)
    operators.start(version)
    ground.apply()
    until(lambda: ground.get(TRAINER) is not None)
    ground.make_scheduler()
    ground.workers_come()
    until(lambda: ground.condition("ClusterReady"), ("True", "AllWorkersJoined"))
    train(ground, 10)
    began, before, status = identities(ground), pods(ground), ground.get(JOB)["status"]

    for update, each in ((20, "this"), (30, version), (40, "this")):
        use_crd("this")
        operators.start(each)
        train(ground, update)
        assert began == identities(ground)
        after = pods(ground)
        assert before[TRAINER] == after[TRAINER]
        assert version != "landed" or before == after
        assert ground.replicas() == 1
        for name in ("startTime", "restarts", "stage"):
            assert status[name] == ground.get(JOB)["status"][name]
        assert status["history"][0] == ground.get(JOB)["status"]["history"][0]
        assert ground.condition("Training") == ("True", "UpdatesCommitted")

    train(ground, 460)
    ground.trainer_ends()
    until(lambda: ground.condition("Succeeded"), ("True", "Finished"))


@pytest.mark.fault("B05")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_crd_that_is_older_than_the_operator(
    ground: Field, operators: Operators, use_crd: Callable[..., None], version: str
) -> None:
    """What that CRD does not know of the status is left out, and the rest is written."""
    use_crd(version, "flapping")
    operators.start("this")
    ground.apply()
    until(ground.is_complete)
    ground.workers_come()
    train(ground, 10)
    until(lambda: ground.condition("Resizing"), ("False", "AtTarget"))

    ground.patch(WORKERS, {"status": {"readyReplicas": 0}}, "status")  # a turn, which a newer CRD remembers

    until(lambda: ground.condition("Resizing"), ("True", "ScalingUp"))
    assert "flapping" not in ground.get(JOB)["status"]
    before = ground.rest()
    time.sleep(1)
    assert before == ground.everything()


def trainer(version: str, trees: Callable[[str], Path], documents: Path, folder: Path, **options: Any) -> Any:
    """A trainer's process of that version, as its pod starts it."""
    command = [sys.executable, "-m", "batchgrowth_trainer", "--job", str(documents / names.JOB_KEY),
        "--plan", str(documents / names.PLAN_KEY), "--output-dir", str(folder), "--metrics-port", "0"]  # fmt: skip
    return start(command, trees(version), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def end(process: subprocess.Popen[bytes]) -> str:
    """The output of a process that ends; one that does not is killed."""
    try:
        return process.communicate(timeout=4 * PATIENCE_SECONDS)[0].decode()
    finally:
        process.kill()


def weights(process: subprocess.Popen[bytes]) -> str:
    """The weights' SHA-256 at the end of the training."""
    text = end(process)
    assert process.returncode == 0, text
    return text.partition("SHA-256 ")[2].split()[0]


@pytest.mark.fault("B05")
@pytest.mark.parametrize(
    ("first", "second"), [("before", "this"), pytest.param("this", "landed", marks=pytest.mark.long)]
)
def test_a_job_and_a_checkpoint_of_another_version(
    ground: Field, operators: Operators, trees: Callable[[str], Path], tmp_path: Path, first: str, second: str
) -> None:
    """Each trainer reads the other operator's documents, and resumes the other's checkpoint to the same weights."""
    documents = tmp_path / "documents"
    documents.mkdir()
    operators.start(second)
    ground.apply(epochs=6, batch={**SHORT, "initial": 128, "maximum": 256}, exchange={"type": "SingleProcess"})
    until(lambda: ground.get(PLAN) is not None)
    for name, text in ground.get(PLAN)["data"].items():
        (documents / name).write_text(text)

    interrupted = trainer(first, trees, documents, tmp_path / "run")
    try:
        assert interrupted.stdout is not None
        first_lines = list(takewhile(lambda line: not line.startswith(b"epoch 1 of"), interrupted.stdout))
        interrupted.send_signal(signal.SIGTERM)
    finally:
        said = b"".join(first_lines).decode() + end(interrupted)
    assert Interrupted.exit_code == interrupted.returncode, said
    resumed = weights(trainer(second, trees, documents, tmp_path / "run"))

    assert resumed == weights(trainer("this", trees, documents, tmp_path / "whole"))
    assert json.loads((tmp_path / "run" / "progress.json").read_text())["update"] == 54
