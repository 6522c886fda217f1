"""What is said when a program of the cluster cannot be built."""

import re
from pathlib import Path

import pytest

from cluster.build import built, silence
from cluster.errors import HarnessError
from cluster.recipe import PAUSE


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a program named go would be found; nothing is built yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "go"


def stand_in(go: Path, version: str) -> None:
    go.write_text(f'#!/bin/sh\n[ "$1" = env ] && echo {version} && exit\necho no space left >&2\nexit 1\n')
    go.chmod(0o755)


def test_an_old_go_is_named(go: Path) -> None:
    """That of Debian 12 and Ubuntu 22.04, which says of our go.mod only that its version has another format."""
    stand_in(go, "go1.19.8")

    with pytest.raises(HarnessError, match=r"^pause: not built yet, and go1\.19\.8 is too old; install Go 1\.21"):
        built(PAUSE, silence)


@pytest.mark.parametrize("version", ["go1.21.0", "go1.26", "devel"])
def test_the_log_of_a_build_that_failed_is_where_the_message_says(version: str, go: Path) -> None:
    stand_in(go, version)

    with pytest.raises(HarnessError, match="no space left") as caught:
        built(PAUSE, silence)

    [log] = re.findall(r"\((/.*\.log)\)", str(caught.value))
    assert Path(log).read_text() == "no space left\n"
    assert [path.name for path in Path(log).parent.iterdir()] == [Path(log).name]
