"""What the project is made of: the rules and the glue around pip-licenses, cyclonedx-py and pip-audit."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cluster import supply

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("License-Expression: MIT", None),
        ("Classifier: License :: OSI Approved :: MIT License", None),
        ("License-Expression: GPL-3.0-only", "GPL-3.0-only not in allow-only"),
        ("License: Mine", "Mine not in allow-only"),
        ("Summary: It names none.", "UNKNOWN not in allow-only"),
        (
            "Classifier: License :: OSI Approved :: MIT License\nClassifier: License :: Other/Proprietary License",
            "fail-on license Other/Proprietary License",
        ),
        (
            "Classifier: License :: OSI Approved :: MIT License\n"
            "Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)",
            "fail-on license GNU General Public License v3 (GPLv3)",
        ),
    ],
)
def test_a_new_dependency_needs_an_allowed_licence(lines: str, refused: str | None, tmp_path: Path) -> None:
    """As `make check` runs pip-licenses, with one more distribution installed."""
    metadata = tmp_path / "aaa-1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.4\nName: aaa\nVersion: 1\n{lines}\n")

    done = subprocess.run(
        [BIN / "pip-licenses"], cwd=ROOT, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    if refused is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1
        assert refused in done.stderr
        assert "for package aaa:1" in done.stderr


def test_each_image_has_an_sbom(tmp_path: Path) -> None:
    """It names what the image needs, in the locked versions, and nothing of the other image or of the tests.

    Each part is needed by another one or by the project, and the same parts give the same bytes: no time, no random id.
    """
    subprocess.run(["make", "--old-file=.venv/.installed", "sboms", f"SBOMS={tmp_path}"], cwd=ROOT, check=True)
    lock = (ROOT / "requirements.lock").read_text().lower()
    names: dict[str, set[str]] = {}
    for image in ("operator", "trainer"):
        content: dict[str, Any] = json.loads((tmp_path / f"{image}.cdx.json").read_text())
        parts: list[dict[str, Any]] = content["components"]
        names[image] = {part["name"].lower() for part in parts}
        pins = [re.sub(r"[-_.]+", "-", part["name"].lower()) + f"=={part['version']}" for part in parts]
        assert [pin for pin in pins if pin not in lock] == []
        needed = {need for each in content["dependencies"] for need in each.get("dependsOn", [])}
        assert {part["bom-ref"] for part in parts} - needed == set()
        assert {"serialNumber", "timestamp"} & {*content, *content["metadata"]} == set()

    assert names["operator"] > {"kopf", "kubernetes", "pydantic"}
    assert names["trainer"] > {"torch", "distributed", "safetensors", "pydantic"}
    assert not names["operator"] & {"torch", "numpy", "pytest", "ruff"}
    assert not names["trainer"] & {"kopf", "kubernetes", "pytest", "ruff"}


class Database(BaseHTTPRequestHandler):
    """OSV's API, with an advisory for `hasty` 1 that 2 fixes, one for `stuck` 1, and an error for `broken`."""

    asked: list[tuple[str, str]]

    def do_POST(self) -> None:
        query: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, version = query["package"]["name"], query["version"]
        self.asked.append((name, version))
        events = [{"introduced": "0"}]
        if name == "hasty":
            events.append({"fixed": "2"})
        advisory = {
            "id": f"GHSA-{name}",
            "summary": "Reads\nanything.",
            "modified": "2026-01-01T00:00:00Z",
            "affected": [
                {
                    "package": {"name": name, "ecosystem": "PyPI"},
                    "ranges": [{"type": "ECOSYSTEM", "events": events}],
                }
            ],
        }
        known = name in ("hasty", "stuck") and version == "1"
        self.send_response(503 if name == "broken" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"vulns": [advisory]} if known else {}).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def database() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The address of a database, and what it was asked."""
    handler = type("Handler", (Database,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query", handler.asked
        server.shutdown()
        thread.join()


def check(lock: str, database: str, tmp_path: Path, *more: str) -> Result:
    """Run `python -m cluster.supply` on that lock."""
    file = tmp_path / "requirements.lock"
    file.write_text(lock)
    return CliRunner().invoke(supply.app, ["--lock", str(file), "--database", database, *more])


def test_every_locked_version_is_looked_up(database: tuple[str, list[tuple[str, str]]], tmp_path: Path) -> None:
    """Those of other platforms and Pythons too, and each version of one name."""
    address, asked = database
    lock = (
        "a==1 ; sys_platform == 'none' \\\n    --hash=sha256:0\n"
        "b==1 ; python_full_version < '3.12' \\\n    --hash=sha256:0\n"
        "b==2 ; python_full_version >= '3.12' \\\n    --hash=sha256:0\n"
    )

    done = check(lock, address, tmp_path, "--strict")

    assert sorted(asked) == [("a", "1"), ("b", "1"), ("b", "2")]
    assert done.output == "vulnerabilities: 3 locked versions, none with a known fix\n"
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("lock", "ends", "words"),
    [
        ("hasty==1", 1, "hasty 1: GHSA-hasty (Reads anything.); fixed in 2\n"),
        ("hasty==2", 0, "1 locked versions, none with a known fix\n"),
        ("stuck==1", 0, "stuck 1: GHSA-stuck (Reads anything.); no version fixes it yet\n"),
        ("broken==1", 1, "NOT CHECKED: "),
    ],
)
def test_a_finding_stops_a_release_and_no_change(
    lock: str, ends: int, words: str, database: tuple[str, list[tuple[str, str]]], tmp_path: Path
) -> None:
    """A version with a fix and a database that does not answer fail with --strict alone."""
    change = check(lock, database[0], tmp_path)
    release = check(lock, database[0], tmp_path, "--strict")

    assert words in change.output
    assert words in release.output
    assert (change.exit_code, release.exit_code) == (0, ends)


def test_one_can_be_accepted(database: tuple[str, list[tuple[str, str]]], tmp_path: Path) -> None:
    done = check("hasty==1", database[0], tmp_path, "--strict", "--ignore", "GHSA-hasty")

    assert (done.exit_code, done.output) == (0, "vulnerabilities: 1 locked versions, none with a known fix\n")


def test_without_a_network_it_says_so(tmp_path: Path) -> None:
    done = check("a==1", "http://127.0.0.1:9/v1/query", tmp_path)

    assert done.exit_code == 0
    assert re.match("vulnerabilities: NOT CHECKED: .*refused", done.output)
