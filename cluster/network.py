"""The addresses of the single node, and the commands that make its network.

The node has its own network namespace, so all of this disappears with its processes.
A veth pair connects it to the machine; pods have no route to the outside.
"""

from __future__ import annotations

HOST_LINK, NODE_LINK = "batchgrowth0", "machine0"
HOST_ADDRESS, NODE_ADDRESS = "10.231.0.1", "10.231.0.2"
LINK_PREFIX = 30
BRIDGE = "pods0"
POD_RANGE, GATEWAY, POD_PREFIX = "10.231.1.0/24", "10.231.1.1", 24
SERVICE_RANGE, FIRST_SERVICE = "10.231.64.0/18", "10.231.64.1"
FAKE_POD_RANGE = "10.231.128.0/17"
WHOLE_RANGE = "10.231.0.0/16"
API_PORT = 6443
QUEUE = 100
BRIDGED = "net/bridge/bridge-nf-call-iptables"

Command = list[str]


def on_the_machine(node_pid: int) -> list[Command]:
    """Create the veth pair, move one end into the node's namespace and route pods and services there."""
    return [
        ["ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", NODE_LINK, "netns", str(node_pid)],
        ["ip", "address", "add", f"{HOST_ADDRESS}/{LINK_PREFIX}", "dev", HOST_LINK],
        ["ip", "link", "set", HOST_LINK, "up"],
        ["ip", "route", "add", POD_RANGE, "via", NODE_ADDRESS],
        ["ip", "route", "add", SERVICE_RANGE, "via", NODE_ADDRESS],
    ]


def in_the_node() -> list[Command]:
    """Commands of the node's init process once its end of the pair exists."""
    return [
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", f"{NODE_ADDRESS}/{LINK_PREFIX}", "dev", NODE_LINK],
        ["ip", "link", "set", NODE_LINK, "up"],
        ["ip", "link", "add", BRIDGE, "type", "bridge"],
        ["ip", "address", "add", f"{GATEWAY}/{POD_PREFIX}", "dev", BRIDGE],
        ["ip", "link", "set", BRIDGE, "up"],
    ]


def queued() -> list[Command]:
    """Put the first packet of each connection from or to a pod into the queue, whose reader decides on it.

    Packets that the node itself sends, such as probes, pass, as they do in every cluster. Without a reader all pass.
    """
    rule = ["iptables", "--wait", "--table", "mangle", "--append", "POSTROUTING"]
    queue = ["--jump", "NFQUEUE", "--queue-num", str(QUEUE), "--queue-bypass"]
    return [
        [*rule, "--match", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "--jump", "RETURN"],
        [*rule, "--match", "addrtype", "--src-type", "LOCAL", "--jump", "RETURN"],
        [*rule, "--source", POD_RANGE, *queue],
        [*rule, "--destination", POD_RANGE, *queue],
    ]


KERNEL_SETTINGS = {"net/ipv4/ip_forward": "1", BRIDGED: "1"}
"""Sysctls of the node's network namespace. A kernel without br_netfilter lacks the second; then a pod cannot reach
itself through a service, and NetworkPolicies are not enforced."""
