"""This tier needs a real Kubernetes: one on this machine (Linux, root, Go, Debian packages) or BATCHGROWTH_KUBECONFIG.

The chart is installed once, and each test has its own namespace, which admits restricted pods only.
Several processes of pytest-xdist share both. A test that is marked `alone` waits until no other test of this tier runs,
one that is marked `quiet` until no other test runs at all, and one that is marked `operator` until no other one with
that mark does.
On a user's cluster, BATCHGROWTH_VALUES is a file of chart values with images that it can pull.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT), str(Path(__file__).parent)]  # so that the tests can import cluster and real_job

from real_job import Kubectl, Reader, RealJob, new_namespace, reading, said, values_of  # noqa: E402

from cluster import build, dask_image, debian, images, release  # noqa: E402
from cluster.errors import HarnessError  # noqa: E402
from cluster.local import LocalCluster, local_cluster  # noqa: E402
from cluster.locks import alone, locked, together  # noqa: E402
from cluster.node import NODE  # noqa: E402
from cluster.recipe import GROUPS  # noqa: E402
from cluster.release import Cluster  # noqa: E402
from cluster.users import KUBECONFIG, users_cluster  # noqa: E402

FAKE_NODES, GPUS = 16, 8
LONGEST_TEST_SECONDS = 900
QUIET, TURNS, OPERATOR, USERS, INSTALLATION = (
    f"cluster-tests-{lock}" for lock in ("quiet", "turns", "operator", "users", "chart")
)
"""Locks: of every test, of this tier's tests, of those marked `operator`, of processes that use the cluster, and for
setting it up.
"""
USED = pytest.StashKey[bool]()
"""Whether a test of this process has used this machine's cluster."""
STARTED_BY_TESTS = "started-by-tests"
"""A file in the cluster's folder."""

MakeJob = Callable[..., RealJob]


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def why_no_cluster() -> str | None:
    """Why no cluster can start on this machine; None if one can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return f"needs {KUBECONFIG}, or Linux and root: a node makes network namespaces and mounts"
    if shutil.which("go") is None:
        return f"needs {KUBECONFIG}, or Go to build Kubernetes with"
    try:
        debian.require((*debian.NODE, *debian.IMAGES))
        debian.namespaces_required()
    except HarnessError as error:
        return str(error)
    return None


def is_here(item: pytest.Item) -> bool:
    """Whether the test belongs to this tier; pytest calls the hooks of a conftest for the tests of every folder."""
    return "/tests/cluster/" in item.path.as_posix()


def waits(item: pytest.Item) -> bool:
    """Whether the test may have to wait until others have ended."""
    return any(item.get_closest_marker(name) for name in ("operator", "alone", "quiet"))


def place(item: pytest.Item) -> int:
    """Return when a test starts: those with time limits of their own first, which are the longest, and `quiet` last."""
    if not is_here(item):
        return 0
    if item.get_closest_marker("quiet"):
        return 4
    if item.get_closest_marker("timeout"):
        return 0
    waiting = (name for name in ("alone", "operator") if item.get_closest_marker(name))
    return {"alone": 3, "operator": 2}.get(next(waiting, ""), 1)


def dealt(here: list[pytest.Item], others: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests in the order in which `--dist worksteal` deals them: to each process an equal number in a row.

    Pods mostly compute at their start and wait otherwise, so tests of other tiers use the processors meanwhile.
    The first process gets this tier's tests that wait for each other: a process that waits runs no test.
    Each of the other processes starts with its share of the rest of this tier.
    Tests that are marked `quiet` come at the end of the first process, when the others have few tests left. Earlier,
    they would wait until all others happen to be between two tests.
    """
    free = [item for item in here if not waits(item)]
    quiet = [item for item in here if item.get_closest_marker("quiet")]
    waiting = [item for item in here if waits(item) and item not in quiet]
    piles = [waiting, *(free[first :: processes - 1] for first in range(processes - 1))]
    left, tests = iter(others), len(here) + len(others)
    for number, pile in enumerate(piles):
        last = [] if number else quiet
        size = tests // (processes - number)
        tests -= size
        pile += islice(left, max(0, size - len(pile) - len(last)))
        pile += last
    return [item for pile in piles for item in pile]


@pytest.hookimpl(trylast=True)  # what is deselected is dealt to nobody
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip this tier if there is no cluster, and on a user's cluster the tests that need a local one.

    Tests that may have to wait for others come last.
    """
    items.sort(key=place)
    processes = int(getattr(config, "workerinput", {}).get("workercount", 1))
    others = [item for item in items if not is_here(item)]
    if others and processes > 1:
        items[:] = dealt([item for item in items if is_here(item)], others, processes)
    users = os.environ.get(KUBECONFIG)
    no_cluster = None if users else why_no_cluster()
    no_local = f"{KUBECONFIG} is set: needs the node, fake nodes or images of `python -m cluster`" if users else None
    for item in items:
        if is_here(item):
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(LONGEST_TEST_SECONDS))
            local = "local" in getattr(item, "fixturenames", ())
            reason = no_cluster or (no_local if local else None)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: a build takes longer than any test may."""
    here = any(map(is_here, session.items))
    if not here or session.config.option.collectonly or os.environ.get(KUBECONFIG) or why_no_cluster():
        return
    try:
        for group in GROUPS:
            build.built(group, say)
        with alone("images"):
            for target in images.TARGETS:
                images.archives_of(target, say)
            dask_image.archives_of_the_dask_operator(say)
    except HarnessError as error:
        pytest.exit(f"tests/cluster: {error}", returncode=1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the test's turn, and start the cluster for the first test; the time limit begins afterwards."""
    with ExitStack() as turn:
        if is_here(item):
            turn.enter_context(alone(TURNS) if item.get_closest_marker("alone") else together(TURNS))
            if item.get_closest_marker("operator"):
                turn.enter_context(alone(OPERATOR))
        turn.enter_context(alone(QUIET) if item.get_closest_marker("quiet") else together(QUIET))
        if is_here(item) and not os.environ.get(KUBECONFIG):
            start_for(item)
        return (yield)


def start_for(item: pytest.Item) -> None:
    """Start this machine's cluster if the test is the first of this process that uses it."""
    uses = "real_cluster" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("skip")
    if not uses or USED in item.session.stash:
        return
    item.session.stash[USED] = True
    with suppress(AssertionError), together(USERS):  # the setup tries again and tells why
        start(item.config.getoption("--family"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session")
def real_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The user's cluster, or this machine's; if tests started that, the last process to use it takes it down."""
    if users := users_cluster():
        yield users
        return
    cluster = local_cluster()
    mark = cluster.folder / STARTED_BY_TESTS
    with together(USERS):
        start(request.config.getoption("--family"))
        yield cluster
    try:
        with alone(USERS, wait=False):
            if mark.exists():
                command("down")
    except BlockingIOError:
        return  # another process still has tests to run


def start(family: str) -> None:
    """Start this machine's cluster, unless it runs."""
    cluster = local_cluster()
    with alone(INSTALLATION):
        if not cluster.is_up():
            command("up", f"--fake-nodes={FAKE_NODES}", f"--gpus={GPUS}", f"--family={family}")
            (cluster.folder / STARTED_BY_TESTS).touch()


def command(*words: str) -> None:
    """Runs `python -m cluster` as users do, so that its servers are not children of this process."""
    done = subprocess.run(
        [sys.executable, "-m", "cluster", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr


@pytest.fixture(scope="session")
def installed(real_cluster: Cluster, shared: Path) -> Cluster:
    """The cluster with the chart installed, once a run: the operator and the Dask operator run in its pods."""
    mark = shared / "installed"
    with alone(INSTALLATION):
        if not mark.exists():
            release.install(real_cluster, values=values_of(real_cluster), say=say)
            mark.touch()
    return real_cluster


@pytest.fixture
def reinstalled(installed: Cluster) -> Iterator[Cluster]:
    """A cluster whose release a test may remove or change; it is reinstalled afterwards."""
    yield installed
    release.install(installed, values=values_of(installed))


@pytest.fixture(scope="session")
def local(installed: Cluster) -> LocalCluster:
    """The same, for tests that need this machine's node, fake nodes or images; skipped on a user's cluster."""
    assert isinstance(installed, LocalCluster)
    return installed


@pytest.fixture
def kubectl(installed: Cluster) -> Kubectl:
    """Returns a function that runs kubectl on the cluster with the chart."""
    return installed.kubectl


@pytest.fixture(scope="session")
def reader(installed: Cluster) -> Iterator[Reader]:
    """Reads the cluster's objects."""
    with reading(installed.kubeconfig) as made:
        yield made


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A new namespace that admits restricted pods only; it is deleted with its pods after the test."""
    with new_namespace(kubectl) as name:
        yield name
        said(kubectl("--namespace", name, "delete", "batchgrowthjobs", "--all", "--wait=false"))
        said(kubectl("--namespace", name, "delete", "pods", "--all", "--grace-period=1", "--wait=false"))


@pytest.fixture
def volume(kubectl: Kubectl, namespace: str, local: LocalCluster, tmp_path: Path) -> Iterator[str]:
    """The class of one PersistentVolume, which is a folder of this machine; no other claim names that class."""
    folder = tmp_path / "volume"
    folder.mkdir()
    for path in (folder, tmp_path, tmp_path.parent, tmp_path.parent.parent):
        path.chmod(0o777)
    node = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    made = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": namespace,
            "capacity": {"storage": "1Gi"},
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [node]}]}},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    said(kubectl("create", "--filename", "-", given=json.dumps(made)))
    yield namespace
    said(kubectl("delete", "persistentvolume", namespace, "--wait=false"))


@pytest.fixture
def claim(kubectl: Kubectl, namespace: str, volume: str) -> str:
    """A PersistentVolumeClaim of the test's namespace, bound to that volume."""
    asked = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "checkpoints", "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": volume,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    said(kubectl("create", "--filename", "-", given=json.dumps(asked)))
    return "checkpoints"


@pytest.fixture
def job(kubectl: Kubectl, reader: Reader, namespace: str) -> MakeJob:
    """Returns a function that applies a manifest (YAML text or an object) in the test's namespace."""

    def applied(manifest: str | dict[str, object]) -> RealJob:
        body = yaml.safe_load(manifest) if isinstance(manifest, str) else manifest
        said(kubectl("--namespace", namespace, "apply", "--filename", "-", given=json.dumps(body)))
        return RealJob(kubectl, reader, namespace, body["metadata"]["name"])

    return applied


@pytest.fixture(scope="session")
def local_sha256(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Returns a function: the SHA-256 of the weights that `batchgrowth run` trains from a manifest on this machine.

    One worker trains them, once a run for each manifest. Modules that it is given besides lie beside the manifest.
    """

    def trained(manifest: str, *modules: Path) -> str:
        digest = hashlib.sha256(manifest.encode()).hexdigest()[:16]
        known = shared / f"weights-of-{digest}"
        with locked(shared / f"{known.name}.lock"):
            if not known.exists():
                known.write_text(train(manifest, modules, tmp_path_factory.mktemp("local")))
        return known.read_text()

    return trained


def train(manifest: str, modules: tuple[Path, ...], folder: Path) -> str:
    """Returns the SHA-256 of the weights after a run in that folder."""
    (folder / "job.yaml").write_text(manifest)
    for module in modules:
        shutil.copy(module, folder)
    program = Path(sys.executable).parent / "batchgrowth"
    words = [program, "run", "job.yaml", "--output-dir", "out", "--workers", "1", "--no-plots"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return str(json.loads((folder / "out" / "summary.json").read_text())["weightsSha256"])
