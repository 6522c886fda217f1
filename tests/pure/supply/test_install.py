"""`make install` and what needs it, on machines with settings, interruptions and folders of their own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STAND_IN = """#!/bin/sh
printf '%s' "${0##*/}" >> "$LOG"; printf ' %s' "$@" >> "$LOG"; echo " PIP_USER=$PIP_USER" >> "$LOG"
for last; do :; done
case "$1 $2" in
"-m venv") mkdir -p "$last/bin"; for name in python pip uv; do cp "$0" "$last/bin/$name"; done ;;
"pip install") case " $* " in *" --offline "*) exit "${OFFLINE:-0}" ;; esac ;;
esac
"""
"""A program in the place of Python, pip and uv, which notes what it is asked; `$OFFLINE` is uv's exit code offline."""


class Checkout:
    """A folder with the Makefile, in which Python, pip and uv only note what they are asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log = folder, folder / "log"
        folder.mkdir()
        for name in ("Makefile", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, folder)
        self.python = self.program(folder / "python3")

    def program(self, path: Path, text: str = STAND_IN) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def make(self, *words: str, **environment: str) -> list[str]:
        """What the programs were asked by `make`, which must succeed."""
        command = ["make", "PYTHON=./python3", *words]
        own = os.environ | {"LOG": str(self._log), "PIP_USER": ""} | environment
        done = subprocess.run(command, cwd=self.folder, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return self._log.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """In a folder whose name has a space and more than ASCII."""
    return Checkout(tmp_path / "my gründe")


def test_everything_goes_into_the_environment_of_the_checkout(checkout: Checkout) -> None:
    """Wherever that is, and whatever the settings of pip and uv are; they name another Python on some machines."""
    asked = checkout.make("install", PIP_USER="1", UV_SYSTEM_PYTHON="1")

    uv = [line for line in asked if line.startswith("uv ")]
    assert len(uv) == 2
    assert all(line.startswith("uv pip install --python .venv/bin/python ") for line in uv)
    [pip] = [line for line in asked if line.startswith("python -m pip install ")]
    assert pip.endswith(" PIP_USER=0")
    assert (checkout.folder / ".venv" / ".installed").exists()


@pytest.mark.parametrize(
    ("there", "python"),
    [
        (("python", "uv"), STAND_IN),
        (("python", "pip", "uv"), "#!/bin/sh\nexit 1\n"),
        (("python", "pip", "uv"), "#!/nowhere/python3\n"),
    ],
    ids=["interrupted before pip was there", "of an older Python", "of a Python that is gone"],
)
def test_an_environment_that_cannot_be_used_is_made_anew(
    there: tuple[str, ...], python: str, checkout: Checkout
) -> None:
    for name in there:
        checkout.program(checkout.folder / ".venv" / "bin" / name, python if name == "python" else STAND_IN)

    asked = checkout.make("install")

    assert [line for line in asked if "-m venv" in line] == ["python3 -m venv --clear .venv PIP_USER="]


def test_one_that_can_be_used_stays(checkout: Checkout) -> None:
    checkout.make("install")
    (checkout.folder / "pyproject.toml").touch()
    os.utime(checkout.folder / ".venv" / ".installed", (0, 0))

    asked = checkout.make("install")

    assert len([line for line in asked if "-m venv" in line]) == 1
    assert len([line for line in asked if "--editable" in line]) == 2


def test_the_project_is_built_by_what_is_installed(checkout: Checkout) -> None:
    """A checkout of another branch makes `make` install it again, which needs no network if no package changed."""
    [build] = [line for line in checkout.make("install") if "--editable" in line]

    assert "--no-deps --no-build-isolation --editable ." in build


@pytest.mark.parametrize(("offline", "tries"), [("0", 1), ("1", 2)], ids=["all is cached", "not all is cached"])
def test_an_sbom_needs_the_network_only_for_what_is_not_cached(offline: str, tries: int, checkout: Checkout) -> None:
    """`make test` makes one, and promises to need nothing but the machine."""
    checkout.program(checkout.folder / ".venv" / "bin" / "cyclonedx-py")

    asked = checkout.make("sboms", OFFLINE=offline)

    parts = [line for line in asked if "--extra trainer" in line]
    assert len(parts) == tries
    assert "--offline" in parts[0]
    assert all("--offline" not in line for line in parts[1:])


@pytest.mark.parametrize(
    ("named", "meant"),
    [("~/.kube/config", "{home}/.kube/config"), ("{home}/my files/config", "{home}/my files/config")],
)
def test_a_kubeconfig_is_one_path(named: str, meant: str, checkout: Checkout, tmp_path: Path) -> None:
    """Whether the shell replaced its ~ or not, and with spaces."""
    checkout.make("install")

    asked = checkout.make("demo", f"KUBECONFIG={named.format(home=tmp_path)}", HOME=str(tmp_path))

    assert asked[-1] == f"python -m cluster.demo --kubeconfig {meant.format(home=tmp_path)} PIP_USER="
