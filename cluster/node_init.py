"""The node's init process: sets up mounts and network, then starts its servers and restarts any that end.

It runs in its own PID, mount and network namespaces: killing it ends every process and container of the node and
removes every mount, interface and iptables rule.
Run by path, with the standard library only. Its one argument is a JSON file written by `cluster.node`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

# The kubelet sets these for the whole machine; bind mounts divert its writes.
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
    """Run a command that must succeed."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)  # noqa: S603


def prepare_mounts(private_folders: list[str]) -> None:
    """Make mounts that are invisible outside the namespace."""
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
    """Wait for the machine to move the interface here, then configure the network."""
    while not has_link(link):
        time.sleep(0.02)
    for command in commands:
        run(*command)
    for name, value in settings.items():
        path = Path("/proc/sys") / name
        if path.exists():
            path.write_text(value)


def enforces_policies(bridged: str, commands: list[list[str]], log: Path) -> bool:
    """Pass new connections of pods to the server that knows the NetworkPolicies, if the kernel can do that."""
    if not (Path("/proc/sys") / bridged).exists():
        log.write_text(f"no {bridged} in this kernel, so NetworkPolicies are not enforced\n")
        return False
    for command in commands:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            log.write_text(f"{' '.join(command)}: {done.stderr}so NetworkPolicies are not enforced\n")
            return False
    return True


def has_link(link: str) -> bool:
    """Whether this namespace has the interface; /sys still shows the machine's."""
    asked = subprocess.run(["ip", "link", "show", link], capture_output=True, check=False)  # noqa: S603, S607
    return asked.returncode == 0


def start(name: str, argv: list[str], logs: str) -> "subprocess.Popen[bytes]":
    """Start a server that appends to its log."""
    with (Path(logs) / f"{name}.log").open("ab") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603


def supervise(servers: dict[str, list[str]], logs: str, after: dict[str, str]) -> None:
    """Restarts servers that end and reaps orphans of containers. Never returns."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    while True:
        for name in servers.keys() - running.keys():
            if name not in after or Path(after[name]).exists():
                running[name] = start(name, servers[name], logs)
        ended = set(iter(reap, 0))
        running = {name: process for name, process in running.items() if process.pid not in ended}
        time.sleep(PAUSE_SECONDS if ended or len(running) == len(servers) else 0.05)


def reap() -> int:
    """Reaps a child that has ended; returns its process id, 0 if there is none."""
    return os.waitpid(-1, os.WNOHANG)[0]


def main(path: str) -> None:
    """Set up the node and supervise its servers."""
    config = json.loads(Path(path).read_text())
    prepare_mounts(config["private_folders"])
    prepare_network(config["link"], config["network"], config["settings"])
    log = Path(config["logs"]) / f"{config['policies']}.log"
    if not enforces_policies(config["bridged"], config["queued"], log):
        del config["servers"][config["policies"]]
    supervise(config["servers"], config["logs"], config["after"])


if __name__ == "__main__":
    main(sys.argv[1])
