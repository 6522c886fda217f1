"""What `make package` writes."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml

from charts.package import package

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "charts" / "batchgrowth" / "ci" / "images-values.yaml"
PLACE = ("--namespace", "operators", "--kube-version", "1.34.0", "--values", IMAGES)


def test_the_chart_in_one_file_is_the_chart(helm: Any, chart: Path, tmp_path: Path) -> None:
    """Helm renders the same objects from it, those of the Dask operator too, and the same files give the same bytes."""
    packed = package(tmp_path)
    first = packed.read_bytes()
    rendered = [helm("template", "batchgrowth", place, "--include-crds", *PLACE) for place in (packed, chart)]
    assert [done.returncode for done in rendered] == [0, 0], rendered
    one, folder = (list(yaml.safe_load_all(done.stdout)) for done in rendered)
    assert folder == one
    assert "daskclusters.kubernetes.dask.org" in rendered[0].stdout
    assert first == package(tmp_path).read_bytes()


def test_the_wheel_has_every_module_and_command(tmp_path: Path) -> None:
    """And nothing else: no test, and no chart."""
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        [commands] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "batchgrowth = " in archive.read(commands).decode()
    rooms = ("plan/batchgrowth", "operator/batchgrowth_operator", "trainer/batchgrowth_trainer")
    modules = {
        path.relative_to(ROOT / room.split("/")[0]).as_posix() for room in rooms for path in (ROOT / room).rglob("*.py")
    }
    assert modules == {name for name in names if name.endswith(".py")}
    assert {name.split("/")[0] for name in names} == {"batchgrowth", "batchgrowth_operator", "batchgrowth_trainer"}
