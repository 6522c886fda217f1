"""The addresses of the single node, and the commands that make its network: of IPv4 or of IPv6, never of both.

The node has its own network namespace, so all of this disappears with its processes.
A veth pair connects it to the machine; pods have no route to the outside.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST_LINK, NODE_LINK = "batchgrowth0", "machine0"
BRIDGE, BRIDGE_MAC = "pods0", "0a:e7:00:00:00:01"
"""The pods' bridge. Without an address of its own, it takes the least of its ports', another one whenever pods come or
go, and for half a minute what pods send to the one before is lost.
"""
RANGES = ("10.231.0.0/16", "fd0a:e7::/48")
"""The ranges that have all addresses of a cluster, of IPv4 and of IPv6."""
API_PORT = 6443
QUEUE = 100

Command = list[str]


@dataclass(frozen=True, slots=True)
class Network:
    """The addresses of one family, with the names that the kernel and Kubernetes' programs have for it."""

    family: str
    host: str
    node: str
    link_prefix: int
    pods: str
    gateway: str
    pod_prefix: int
    services: str
    first_service: str
    fake_pods: str
    everything: str
    any_address: str
    tables: str
    bridged: str
    """The sysctl, below /proc/sys, by which the packet filter sees packets between the pods of a node."""
    forwarding: str

    @property
    def host_range(self) -> str:
        """The range that has the machine's address alone."""
        return f"{self.host}/{128 if ':' in self.host else 32}"

    @property
    def kernel_settings(self) -> dict[str, str]:
        """Sysctls of the node's network namespace.

        A kernel without br_netfilter lacks the second; then a pod cannot reach itself through a service, and
        NetworkPolicies are not enforced.
        """
        return {self.forwarding: "1", self.bridged: "1"}

    def on_the_machine(self, node_pid: int) -> list[Command]:
        """Create the veth pair, move one end into the node's namespace and route pods and services there."""
        return [
            ["ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", NODE_LINK, "netns", str(node_pid)],
            self._address(self.host, self.link_prefix, HOST_LINK),
            ["ip", "link", "set", HOST_LINK, "up"],
            ["ip", "route", "add", self.pods, "via", self.node],
            ["ip", "route", "add", self.services, "via", self.node],
        ]

    def in_the_node(self) -> list[Command]:
        """Commands of the node's init process once its end of the pair exists."""
        return [
            ["ip", "link", "set", "lo", "up"],
            self._address(self.node, self.link_prefix, NODE_LINK),
            ["ip", "link", "set", NODE_LINK, "up"],
            ["ip", "link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge"],
            self._address(self.gateway, self.pod_prefix, BRIDGE),
            ["ip", "link", "set", BRIDGE, "up"],
        ]

    def queued(self) -> list[Command]:
        """Put the first packet of each connection from or to a pod into the queue, whose reader decides on it.

        Packets that the node itself sends, such as probes, pass, as they do in every cluster, and so do those that
        look for neighbours, which belong to no connection. Without a reader all pass.
        """
        rule = [self.tables, "--wait", "--table", "mangle", "--append", "POSTROUTING"]
        queue = ["--jump", "NFQUEUE", "--queue-num", str(QUEUE), "--queue-bypass"]
        return [
            [*rule, "--match", "conntrack", "--ctstate", "ESTABLISHED,RELATED,UNTRACKED", "--jump", "RETURN"],
            [*rule, "--match", "addrtype", "--src-type", "LOCAL", "--jump", "RETURN"],
            [*rule, "--source", self.pods, *queue],
            [*rule, "--destination", self.pods, *queue],
        ]

    def _address(self, address: str, prefix: int, link: str) -> Command:
        # An address of IPv6 cannot be used for a second or two, while the kernel asks whether another has it.
        at_once = ["nodad"] if ":" in address else []
        return ["ip", "address", "add", f"{address}/{prefix}", "dev", link, *at_once]


IPV4 = Network(
    family="IPv4",
    host="10.231.0.1",
    node="10.231.0.2",
    link_prefix=30,
    pods="10.231.1.0/24",
    gateway="10.231.1.1",
    pod_prefix=24,
    services="10.231.64.0/18",
    first_service="10.231.64.1",
    fake_pods="10.231.128.0/17",
    everything="0.0.0.0/0",
    any_address="0.0.0.0",  # noqa: S104
    tables="iptables",
    bridged="net/bridge/bridge-nf-call-iptables",
    forwarding="net/ipv4/ip_forward",
)
IPV6 = Network(
    family="IPv6",
    host="fd0a:e7::1",
    node="fd0a:e7::2",
    link_prefix=126,
    pods="fd0a:e7:0:1::/112",
    gateway="fd0a:e7:0:1::1",
    pod_prefix=112,
    services="fd0a:e7:0:2::/112",
    first_service="fd0a:e7:0:2::1",
    fake_pods="fd0a:e7:0:3::/112",
    everything="::/0",
    any_address="::",
    tables="ip6tables",
    bridged="net/bridge/bridge-nf-call-ip6tables",
    forwarding="net/ipv6/conf/all/forwarding",
)
BY_FAMILY = {network.family: network for network in (IPV4, IPV6)}
