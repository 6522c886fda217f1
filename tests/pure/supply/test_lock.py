"""requirements.lock, read."""

from pathlib import Path

import pytest

from cluster.errors import HarnessError
from cluster.supply.lock import read_lock

ROOT = Path(__file__).parents[3]
DIGEST = f"--hash=sha256:{64 * '0'}"


def test_every_distribution_is_pinned_with_digests() -> None:
    """Each entry of the project's own lock."""
    text = (ROOT / "requirements.lock").read_text()
    locked = read_lock(text)

    assert len(locked) > 100
    assert text.count("--hash=sha256:") == sum(len(each.digests) for each in locked)
    assert all(each.digests for each in locked)


def test_the_versions_of_a_platform() -> None:
    """A name has several where a marker tells them apart."""
    both = (
        f"a==1 ; python_full_version < '3.12' \\\n    {DIGEST}\nA==2 ; python_full_version >= '3.12' \\\n    {DIGEST}\n"
    )
    old, new = ({"python_full_version": version} for version in ("3.11.4", "3.13.0"))

    assert ["1"] == [each.version for each in read_lock(both) if each.applies(old)]
    assert ["2"] == [each.version for each in read_lock(both) if each.applies(new)]
    assert {"a"} == {each.name for each in read_lock(both)}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a==1", "a==1 has no digest"),
        (f"a==1 {DIGEST[:-1]}", "a==1 has no digest"),
        (f"a==1 {DIGEST} --hash=md5:0", "a==1 has no digest"),
        (f"a>=1 {DIGEST}", "a>=1 is not pinned"),
        (f"a==1.* {DIGEST}", r"a==1\.\* is not pinned"),
        (f"a {DIGEST}", "a is not pinned"),
        (f"./a.whl {DIGEST}", "Expected package name"),
    ],
)
def test_a_line_that_names_less_is_refused(line: str, words: str) -> None:
    with pytest.raises(HarnessError, match=rf"^requirements\.lock:3: .*{words}"):
        read_lock(f"# A comment.\n\n{line}\n")
