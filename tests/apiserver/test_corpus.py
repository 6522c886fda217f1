"""A real API server accepts and refuses the corpus as expected.yaml says, with kubectl's strict field validation."""

import re
from pathlib import Path

import pytest
import yaml

from cluster.apiserver import ApiServer

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
EXPECTED = yaml.safe_load((CORPUS / "expected.yaml").read_text())
SEEN = [name for name, expected in EXPECTED.items() if expected["schema"] == "sees"]

# JSON has no infinity: kubectl refuses the file before it looks at fields.
NAMELESS = {"batch-maximum-infinite"}


@pytest.fixture(scope="module")
def refused(apiserver: ApiServer) -> dict[str, str]:
    """Bad manifest -> the message that refused it; from one kubectl, which continues after an error."""
    for _ in range(3):  # kubectl says nothing of files if the server, on a busy machine, does not answer in time
        told = apiserver.kubectl("apply", "--dry-run=server", "-f", CORPUS / "bad").stderr
        parts = re.split(r"corpus/bad/([\w-]+)\.yaml\"?:", told)
        if len(parts) > 1:
            break
    assert len(parts) > 1, told
    return dict(zip(parts[1::2], map(printable, parts[2::2]), strict=True))


def printable(text: str) -> str:
    """The text with control characters written as expected.yaml writes them."""
    return re.sub(r"[\x00-\x09\x0b-\x1f]", lambda found: rf"\x{ord(found[0]):02x}", text)


@pytest.mark.parametrize("name", [name for name in SEEN if name not in NAMELESS])
def test_refused_with_the_name_of_the_field(refused: dict[str, str], name: str) -> None:
    field = EXPECTED[name]["names"]
    assert name in refused
    assert field == "FILE" or re.search(rf"{re.escape(field)}(?!\w)", refused[name]), refused[name]


@pytest.mark.parametrize("name", sorted(NAMELESS))
def test_refused(refused: dict[str, str], name: str) -> None:
    assert name in refused


def without_policy_warnings(stderr: str) -> list[str]:
    """The other lines: tests of other files put the chart's policies in force on the same server."""
    return [line for line in stderr.splitlines() if "ValidatingAdmissionPolicy" not in line]


def test_an_unquoted_date_is_text(apiserver: ApiServer) -> None:
    path = CORPUS / "good" / "arguments-a-date.yaml"
    got = apiserver.kubectl("apply", "--dry-run=server", "-o", "jsonpath={.spec.workload.arguments.since}", "-f", path)
    assert (got.stdout, without_policy_warnings(got.stderr)) == ("2026-01-01", [])


@pytest.mark.parametrize("folder", ["tests/corpus/good", "examples"])
def test_good_ones_are_accepted(apiserver: ApiServer, folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.yaml"))
    applied = apiserver.kubectl("apply", "--dry-run=server", "-R", "-f", ROOT / folder)
    assert (applied.returncode, without_policy_warnings(applied.stderr)) == (0, [])
    assert len(paths) == applied.stdout.count("created (server dry run)") > 0
