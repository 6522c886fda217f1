"""Which packages of Debian and Ubuntu are installed for a node and for image builds."""

from pathlib import Path

import pytest

from cluster import debian
from cluster.errors import HarnessError
from cluster.images import _base


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have run, on a machine of root that has every program and no other file."""
    seen: list[list[str]] = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name, path: f"/usr/bin/{name}")
    monkeypatch.setattr(debian, "Path", lambda name: Path("/nowhere") / str(name).lstrip("/"))
    monkeypatch.setattr(debian, "logged", lambda words, log, **_: seen.append([str(word) for word in words]))
    return seen


def test_ubuntu_gets_debian_s_keys(commands: list[list[str]], tmp_path: Path) -> None:
    """Without them no package of the base image can be checked, and its build ends."""
    with pytest.raises(HarnessError, match=r"debian-archive-keyring\.gpg: missing"):
        debian.require(debian.IMAGES)

    assert debian.install(tmp_path / "log") == ["debian-archive-keyring"]
    assert commands[-1][-1] == "debian-archive-keyring"
    assert "--option=DPkg::Lock::Timeout=600" in commands[-1]  # a new machine's own updates hold the lock for minutes


def test_the_base_image_is_checked_by_these_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "buildah").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "buildah").chmod(0o755)
    monkeypatch.setattr("cluster.images.logged", lambda words, log, **_: seen.extend(map(str, words)))

    _base(lambda text: None)

    assert "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg" in seen
