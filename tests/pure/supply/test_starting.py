"""What a machine that cannot start a cluster is told, and when."""

from pathlib import Path

import pytest

from cluster import starting
from cluster.errors import HarnessError
from cluster.local import LocalCluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster that is not up, of a root that has every program."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(starting, "require", lambda programs: None)
    return LocalCluster(tmp_path / "cluster", tmp_path / "images")


def test_a_container_without_rights_is_refused_before_anything_is_built(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build takes up to an hour."""
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    built: list[object] = []
    monkeypatch.setattr(starting, "built", lambda group, say: built.append(group))

    with pytest.raises(HarnessError, match=r"refuses: unshare failed: Operation not permitted; .* run it privileged"):
        starting.start(cluster, num_fake=0, gpus=0, say=print)

    assert built == []


@pytest.mark.parametrize(
    ("cache", "logs"), [("cache", r"\nAll logs are in .*/cache/"), ("file", r"\nThe logs could not be saved: ")]
)
def test_a_start_that_the_system_refuses_is_one_message(
    cache: str, logs: str, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without control groups, or on a full disk, which takes no logs either; nothing is left."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    for name in ("namespaces_required", "built"):
        monkeypatch.setattr(starting, name, lambda *_: None)
    stopped: list[LocalCluster] = []
    monkeypatch.setattr(starting, "stop", stopped.append)

    def refused(cluster: LocalCluster, *_: object) -> None:
        raise OSError(30, "Read-only file system", "/sys/fs/cgroup/batchgrowth")

    monkeypatch.setattr(starting, "_start", refused)

    with pytest.raises(HarnessError, match=r"Read-only file system: '/sys/fs/cgroup/batchgrowth'" + logs):
        starting.start(cluster, num_fake=0, gpus=0, say=print)

    assert stopped == [cluster, cluster]
