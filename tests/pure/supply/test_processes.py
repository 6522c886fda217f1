"""The programs that the cluster's builds run."""

import os
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from cluster.errors import HarnessError
from cluster.network import BY_FAMILY, RANGES
from cluster.processes import logged, output, run, start


def test_a_log_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    """As the cache may be, while the images that are built are kept elsewhere."""
    log = tmp_path / "images" / "operator.log"

    logged([sys.executable, "-c", "print('built')"], log, folder=tmp_path)

    assert log.read_text() == "built\n"


def test_the_end_of_the_log_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"

    with pytest.raises(HarnessError, match=r"ended with code 3; its log ends:\n.*no space left"):
        logged([sys.executable, "-c", "print('no space left'); raise SystemExit(3)"], log, folder=tmp_path)


def ask(code: str) -> str:
    return output([sys.executable, "-c", code])


def test_what_pods_run_can_be_read_by_other_users(tmp_path: Path) -> None:
    """A program that root builds with a umask of 077 would start in no pod with another user."""
    before = os.umask(0o077)
    try:
        ask(f"open({str(tmp_path / 'by-run')!r}, 'w')")
        logged([sys.executable, "-c", "open('by-logged', 'w')"], tmp_path / "log", folder=tmp_path)
        start("one", ["touch", tmp_path / "by-start"], tmp_path / "log").process.wait(10)
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("by-*")}
    assert modes == dict.fromkeys(("by-run", "by-logged", "by-start"), 0o644)


def test_programs_find_those_of_the_administrator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's `su` leaves their folders out of PATH, where kubelet, kube-proxy and apt look for iptables and more."""
    monkeypatch.setenv("PATH", "/usr/bin")

    assert ask("import os; print(os.environ['PATH'])") == "/usr/bin:/usr/local/sbin:/usr/sbin:/sbin\n"


@pytest.mark.parametrize("given", ["", "localhost,.example.com"])
def test_no_proxy_stands_between_the_programs_and_the_cluster(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A company's proxy, which the builds need, knows nothing of the addresses of the cluster."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", given)
    ranges = [ip_network(each) for each in RANGES]

    for name in ("NO_PROXY", "no_proxy"):
        direct = ask(f"import os; print(os.environ[{name!r}])").strip()
        assert direct.split(",") == [*filter(None, given.split(",")), *RANGES]
    for network in BY_FAMILY.values():
        for address in (network.host, network.node, network.gateway, network.first_service):
            assert any(ip_address(address) in each for each in ranges)


@pytest.mark.parametrize("how", ["run", "logged", "start"])
def test_a_program_that_is_gone_is_named(how: str, tmp_path: Path) -> None:
    """As those of a cluster are that is up, once the repository names other versions of them."""
    ctr, log = tmp_path / "ctr", tmp_path / "log"
    calls = {
        "run": lambda: run([ctr, "images"]),
        "logged": lambda: logged([ctr], log, folder=tmp_path),
        "start": lambda: start("ctr", [ctr], log),
    }

    with pytest.raises(HarnessError, match=f"{ctr} is missing; `python -m cluster build` builds"):
        calls[how]()
