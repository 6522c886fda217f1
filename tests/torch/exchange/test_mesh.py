"""Connections between members that are threads of this process: every byte arrives, and a lost peer is noticed."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from batchgrowth_trainer.exchange import group as group_module
from batchgrowth_trainer.exchange.connections import Encryption, Listener, RankAssignment, assign_ranks, connect_all
from batchgrowth_trainer.exchange.group import Mesh, PeerLost, TcpGroup, spread_state, swap_with_all
from distributed.security import Security
from hypothesis import given, settings
from hypothesis import strategies as st

HOST = "127.0.0.1"
TOKEN = b"Z" * 16
MANY = 3 << 20  # more bytes than the kernel buffers for one connection at first


def together(size: int, act: Callable[[int], Any]) -> list[Any]:
    """What `act` returned or raised for each rank, in threads of their own."""
    results: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            results[rank] = act(rank)
        except (OSError, PeerLost, RuntimeError) as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def assignments_at(listeners: list[Listener]) -> list[RankAssignment]:
    return list(assign_ranks([listener.address for listener in listeners], TOKEN, 10.0))


def meshes(size: int, host: str = HOST, encryption: Encryption | None = None) -> list[Mesh]:
    listeners = [Listener(host) for _ in range(size)]
    places = assignments_at(listeners)
    found = together(size, lambda rank: Mesh(connect_all(places[rank], listeners[rank], encryption, never, 10.0)))
    assert [Mesh] * size == [type(mesh) for mesh in found], found
    for listener in listeners:
        listener.close()
    return found


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    """Those of two members."""
    both = [Listener(HOST), Listener(HOST)]
    yield both
    for listener in both:
        listener.close()


def never() -> bool:
    return False


def encryption_of(security: Security, *, is_kept: bool = True) -> Encryption:
    """As a worker's."""
    dials = security.get_connection_args("worker")["ssl_context"]
    return Encryption(security.get_listen_args("worker")["ssl_context"], dials, is_kept)


@pytest.fixture(scope="module")
def certificate() -> Security:
    """A job's certificate and authority."""
    return Security.temporary()


def filled(sender: int, receiver: int, count: int) -> bytearray:
    return bytearray([(7 * sender + 3 * receiver + 1) % 251]) * count


def test_every_byte_arrives_at_its_receiver(certificate: Security) -> None:
    """Any number of bytes, among them none and more than fits into a buffer, in both directions at once."""

    @settings(max_examples=20, deadline=None)
    @given(size=st.integers(2, 5), data=st.data(), kept=st.sampled_from([True, False, None]))
    def every_byte_arrives(size: int, data: st.DataObject, kept: bool | None) -> None:
        amounts = st.sampled_from([None, 0, 1, 38_000, MANY])
        drawn = {(a, b): data.draw(amounts) for a in range(size) for b in range(size) if a != b}
        counts = {pair: count for pair, count in drawn.items() if count is not None}
        found = meshes(size, encryption=None if kept is None else encryption_of(certificate, is_kept=kept))

        def act(rank: int) -> dict[int, bytearray]:
            others = [peer for peer in range(size) if peer != rank]
            outgoing = {p: memoryview(filled(rank, p, counts[rank, p])) for p in others if (rank, p) in counts}
            landing = {p: bytearray(counts[p, rank]) for p in others if (p, rank) in counts}
            found[rank].swap_bytes(outgoing, {p: memoryview(room) for p, room in landing.items()}, 10.0)
            return landing

        for rank, landing in enumerate(together(size, act)):
            assert {p: filled(p, rank, counts[p, rank]) for p in landing} == landing
        for mesh in found:
            mesh.close()

    every_byte_arrives()


@pytest.fixture(params=["tls", "greeting", "tcp"])
def encryption(request: pytest.FixtureRequest, certificate: Security) -> Encryption | None:
    """That of a job's certificate, throughout or for the greeting alone, or none."""
    if request.param == "tcp":
        return None
    return encryption_of(certificate, is_kept=request.param == "tls")


def test_a_peer_that_has_gone_is_noticed_at_once(encryption: Encryption | None) -> None:
    first, second, third = meshes(3, encryption=encryption)
    second.close()
    with pytest.raises(ConnectionError):
        first.swap_bytes({}, {1: memoryview(bytearray(1)), 2: memoryview(bytearray(1))}, 60.0)
    with pytest.raises(OSError):  # a send may still succeed, into a buffer that is never read
        third.swap_bytes({1: memoryview(bytes(MANY))}, {1: memoryview(bytearray(1))}, 60.0)
    first.close()
    third.close()


def test_the_first_of_several_peers_is_known(encryption: Encryption | None) -> None:
    """That which has sent, what is left of it, and that which has gone; a wake ends the wait."""
    first, second, third = meshes(3, encryption=encryption)
    assert first.arrived({1, 2}, 0.0) == []
    first.wake()
    assert first.arrived({1, 2}, 60.0) == []
    third.swap_bytes({0: memoryview(b"ab")}, {}, 10.0)
    for letter in (b"a", b"b"):
        assert first.arrived({1, 2}, 60.0) == [2]
        room = bytearray(1)
        first.swap_bytes({}, {2: memoryview(room)}, 10.0)
        assert letter == room
    assert first.arrived({1, 2}, 0.0) == []
    second.close()
    assert first.arrived({1, 2}, 60.0) == [1]
    first.close()
    third.close()


def test_what_was_sent_before_closing_still_arrives(encryption: Encryption | None) -> None:
    """In either direction: the one that dialled has never read."""
    for sender in (0, 1):
        both = meshes(2, encryption=encryption)
        both[sender].swap_bytes({1 - sender: memoryview(b"the last sum")}, {}, 10.0)
        both[sender].close()
        landing = bytearray(12)
        both[1 - sender].swap_bytes({}, {sender: memoryview(landing)}, 10.0)
        assert landing == b"the last sum"
        both[1 - sender].close()


@pytest.mark.fault("C09")
def test_a_silent_peer_times_out(encryption: Encryption | None) -> None:
    first, second = meshes(2, encryption=encryption)
    with pytest.raises(TimeoutError, match=r"no answer from rank 1 within 0\.05 s"):
        first.swap_bytes({}, {1: memoryview(bytearray(1))}, 0.05)
    first.close()
    second.close()


def test_members_connect_over_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    for mesh in meshes(2, "::1"):
        mesh.close()


def test_a_member_that_does_not_connect_times_out(listeners: list[Listener]) -> None:
    with pytest.raises(TimeoutError, match="not every member connected in time"):
        connect_all(assignments_at(listeners)[0], listeners[0], None, never, 0.3)


def test_a_generation_that_is_over_is_not_waited_for(listeners: list[Listener]) -> None:
    over = threading.Event()
    threading.Timer(0.2, over.set).start()
    with pytest.raises(ConnectionError, match="the generation is over already"):
        connect_all(assignments_at(listeners)[0], listeners[0], None, over.is_set, 30.0)


def test_a_listener_that_closes_ends_the_wait(listeners: list[Listener]) -> None:
    threading.Timer(0.2, listeners[0].close).start()
    with pytest.raises(ConnectionError, match="the run has ended"):
        connect_all(assignments_at(listeners)[0], listeners[0], None, never, 30.0)


def test_a_member_that_cannot_be_dialled_is_an_error_at_once(listeners: list[Listener]) -> None:
    places = assignments_at(listeners)
    listeners[0].close()
    began = time.monotonic()
    with pytest.raises(ConnectionError):
        connect_all(places[1], listeners[1], None, never, 30.0)
    assert time.monotonic() - began < 10


# --- strangers ----------------------------------------------------------------------------------------------------


@pytest.mark.fault("C10")
def test_connections_without_the_token_are_closed(listeners: list[Listener], encryption: Encryption | None) -> None:
    """They connect before the members do, which they do not delay: with other bytes, with none, and one disconnects."""
    intruders = list[socket.socket]()
    for sent in (b"x" * 64, b"", b"GET /"):
        intruders.append(socket.create_connection(listeners[0].address))
        intruders[-1].sendall(sent)
    intruders[-1].close()
    places, began = assignments_at(listeners), time.monotonic()
    first, second = together(2, lambda rank: Mesh(connect_all(places[rank], listeners[rank], encryption, never, 10.0)))
    assert time.monotonic() - began < 2.9, "the silent one was waited for"
    arrives(second, first, 0)
    for one in (first, second, *intruders):
        one.close()


@pytest.mark.parametrize("token", ["of an earlier generation", "right"])
def test_ranks_are_checked(listeners: list[Listener], token: str) -> None:
    """A holder of the token cannot take the rank of a member that is connected, of the greeter, or of none."""
    places, strangers = assignments_at(listeners), list[socket.socket]()
    for rank in (0, 2, 2**32 - 1) if token == "right" else (1,):
        strangers.append(socket.create_connection(listeners[0].address))
        begins = TOKEN if token == "right" else bytes(16)
        strangers[-1].sendall(begins + rank.to_bytes(4, "big"))
    first, second = together(2, lambda rank: Mesh(connect_all(places[rank], listeners[rank], None, never, 10.0)))
    arrives(second, first, 0)
    for stranger in strangers:
        stranger.settimeout(5)
        assert stranger.recv(1) == b""
        stranger.close()
    first.close()
    second.close()


@pytest.mark.fault("C21", "E01", "G03")
@pytest.mark.parametrize("is_kept", [True, False], ids=["throughout", "for the greeting"])
@pytest.mark.parametrize("theirs", ["another authority's", "none, in plain TCP"])
def test_members_without_the_job_s_certificate_do_not_connect(
    listeners: list[Listener], certificate: Security, theirs: str, is_kept: bool
) -> None:
    """Though they have the token: the certificate must be the job's."""
    places, ours = assignments_at(listeners), encryption_of(certificate, is_kept=is_kept)
    other = encryption_of(Security.temporary(), is_kept=is_kept) if theirs == "another authority's" else None
    found = together(2, lambda rank: connect_all(places[rank], listeners[rank], (ours, other)[rank], never, 1.0))
    assert isinstance(found[0], OSError)
    for connection in found[1].values() if isinstance(found[1], dict) else ():  # it has dialled, and was not let in
        connection.close()


def test_what_travels_is_encrypted(listeners: list[Listener], certificate: Security) -> None:
    """Seen by one who relays every byte between two members."""
    secret, seen = b"the sum of all gradients", bytearray()
    relay = socket.create_server((HOST, 0))

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        while got := source.recv(65536):
            seen.extend(got)
            target.sendall(got)

    def carry() -> None:
        with relay, relay.accept()[0] as dialled, socket.create_connection(listeners[0].address) as onward:
            back = threading.Thread(target=pass_on, args=(onward, dialled))
            back.start()
            pass_on(dialled, onward)
            onward.shutdown(socket.SHUT_WR)
            back.join()

    relaying = threading.Thread(target=carry)
    relaying.start()
    places = list(assign_ranks([relay.getsockname(), listeners[1].address], TOKEN, 10.0))
    ours = encryption_of(certificate)
    first, second = together(2, lambda rank: Mesh(connect_all(places[rank], listeners[rank], ours, never, 10.0)))
    arrives(second, first, 0, secret)
    assert len(seen) > len(secret)
    assert secret not in seen
    assert TOKEN not in seen
    first.close()
    second.close()
    relaying.join()


@pytest.mark.fault("G03")
def test_a_greeting_that_is_relayed_to_another_member_is_refused(
    listeners: list[Listener], certificate: Security
) -> None:
    """By one who listens where rank 0 has died, and would stand between ranks 1 and 2 in plain TCP."""

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while got := source.recv(65536):
                target.sendall(got)
            target.shutdown(socket.SHUT_WR)

    def relay_all(relay: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            while True:
                dialled = stack.enter_context(relay.accept()[0])
                onward = stack.enter_context(socket.create_connection(listeners[0].address))
                for ends in ((dialled, onward), (onward, dialled)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server((HOST, 0)) as relay:
        threading.Thread(target=relay_all, args=(relay,), daemon=True).start()
        addresses = [relay.getsockname(), *(listener.address for listener in listeners)]
        _, *places = assign_ranks(addresses, TOKEN, 10.0)
        ours = encryption_of(certificate, is_kept=False)
        found = together(2, lambda index: connect_all(places[index], listeners[index], ours, never, 3.0))
        relay.shutdown(socket.SHUT_RDWR)
    assert [isinstance(result, OSError) for result in found] == [True, True]


@pytest.mark.fault("C09")
def test_a_member_that_waits_gives_up_when_the_generation_is_over(
    listeners: list[Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its patience ends: a peer hangs, and the state of the others is to be saved."""
    monkeypatch.setattr(group_module, "_LOOK_SECONDS", 0.01)
    places, looks = assignments_at(listeners), iter([False, False, True])
    peers = together(2, lambda rank: connect_all(places[rank], listeners[rank], None, never, 10.0))
    first, second = Mesh(peers[0], lambda: next(looks)), Mesh(peers[1])
    with pytest.raises(ConnectionError, match="the driver has ended the generation"):
        first.swap_bytes({}, {1: memoryview(bytearray(2))}, 600.0)
    first.close()
    second.close()


def arrives(sender: Mesh, receiver: Mesh, rank: int, what: bytes = b"hi") -> None:
    landing = bytearray(len(what))
    sender.swap_bytes({rank: memoryview(what)}, {}, 10.0)
    receiver.swap_bytes({}, {1 - rank: memoryview(landing)}, 10.0)
    assert what == landing


# --- as a group ---------------------------------------------------------------------------------------------------


def groups(size: int) -> list[TcpGroup]:
    listeners = [Listener(HOST) for _ in range(size)]
    places = assignments_at(listeners)
    found = together(size, lambda rank: TcpGroup(places[rank], listeners[rank]))
    for listener in listeners:
        listener.close()
    return found


def test_members_exchange_tensors_of_every_dtype() -> None:
    found = groups(3)

    def act(rank: int) -> tuple[list[list[int]], list[torch.Tensor]]:
        group = found[rank]
        places = [place.tolist() for place in swap_with_all(group, torch.tensor([rank, 5]))]
        state = [torch.full((300_000,), float(rank)), torch.tensor([rank], dtype=torch.int64),
                 torch.tensor([rank == 1]), torch.full((2,), rank, dtype=torch.bfloat16), torch.empty(0)]  # fmt: skip
        spread_state(group, [False, True, False], state)
        group.close()
        return places, state

    for places, state in together(3, act):
        assert places == [[0, 5], [1, 5], [2, 5]]
        assert [float(vector.float().mean()) for vector in state[:4]] == [1.0] * 4


def test_a_lost_peer_raises_peer_lost() -> None:
    first, second = groups(2)
    second.close()
    with pytest.raises(PeerLost, match=r"rank 1 has closed|Connection reset|Broken pipe"):
        first.swap({}, {1: torch.empty(4)})
    first.close()


def test_a_generation_that_is_over_raises_peer_lost(listeners: list[Listener]) -> None:
    with pytest.raises(PeerLost, match="the generation is over already"):
        TcpGroup(assignments_at(listeners)[0], listeners[0], None, lambda: True)
