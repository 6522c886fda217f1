"""The first process of the node: mounts, network, then its servers, started again whenever one ends.

It runs in namespaces of its own (processes, mounts, network). Whoever kills it ends every process of the node and
every container, and takes every mount, interface and iptables rule with them.
Run by path, with nothing but the standard library. Its one argument is a JSON file that `cluster.node` wrote.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

# The kubelet sets these for the whole machine; here it may write, and nothing comes of it.
MACHINE_WIDE = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
PAUSE_SECONDS = 0.5


def run(*argv: str) -> None:
    """Runs a command that has to succeed."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)  # noqa: S603


def prepare_mounts(private_folders: list[str]) -> None:
    """Mounts that nobody outside sees."""
    run("mount", "--make-rshared", "/")
    for folder in ("/run", *private_folders):
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    for name in MACHINE_WIDE:
        real = Path("/proc/sys") / name
        if real.exists():
            copy = Path("/run") / name.replace("/", ".")
            copy.write_text(real.read_text())
            run("mount", "--bind", str(copy), str(real))


def prepare_network(link: str, commands: list[list[str]], settings: dict[str, str]) -> None:
    """Waits for the interface that the machine's side hands over, then sets everything up."""
    while not is_there(link):
        time.sleep(0.02)
    for command in commands:
        run(*command)
    for name, value in settings.items():
        path = Path("/proc/sys") / name
        if path.exists():
            path.write_text(value)


def is_there(link: str) -> bool:
    """Whether this namespace has the interface; /sys is still the machine's and does not know."""
    asked = subprocess.run(["ip", "link", "show", link], capture_output=True, check=False)  # noqa: S603, S607
    return asked.returncode == 0


def start(name: str, argv: list[str], logs: str) -> "subprocess.Popen[bytes]":
    """A server with its log."""
    with (Path(logs) / f"{name}.log").open("ab") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603


def supervise(servers: dict[str, list[str]], logs: str, after: dict[str, str]) -> None:
    """Keeps the servers running, and buries what containers leave behind. Never returns."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    while True:
        for name in servers.keys() - running.keys():
            if name not in after or Path(after[name]).exists():
                running[name] = start(name, servers[name], logs)
        ended = set(iter(bury, 0))
        running = {name: process for name, process in running.items() if process.pid not in ended}
        time.sleep(PAUSE_SECONDS if ended or len(running) == len(servers) else 0.05)


def bury() -> int:
    """The process id of a child that has ended, 0 where there is none."""
    return os.waitpid(-1, os.WNOHANG)[0]


def main(path: str) -> None:
    """Does it all."""
    config = json.loads(Path(path).read_text())
    prepare_mounts(config["private_folders"])
    prepare_network(config["link"], config["network"], config["settings"])
    supervise(config["servers"], config["logs"], config["after"])


if __name__ == "__main__":
    main(sys.argv[1])
