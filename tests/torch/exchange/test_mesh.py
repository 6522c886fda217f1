"""Connections between members that are threads of this process: every byte arrives, and a lost peer is noticed."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from batchgrowth_trainer.exchange.group import PeerLost, Seat, TcpGroup, send_state, swap_with_all
from batchgrowth_trainer.exchange.mesh import Mesh
from hypothesis import given, settings
from hypothesis import strategies as st

c10d: Any = torch.distributed
HOST = "127.0.0.1"
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


def meshes(size: int, host: str = HOST) -> list[Mesh]:
    store = c10d.HashStore()
    found = together(size, lambda rank: Mesh(store, rank, size, host, 10.0))
    assert [Mesh] * size == [type(mesh) for mesh in found], found
    return found


def filled(sender: int, receiver: int, count: int) -> bytearray:
    return bytearray([(7 * sender + 3 * receiver + 1) % 251]) * count


@settings(max_examples=15, deadline=None)
@given(size=st.integers(2, 5), data=st.data())
def test_every_byte_arrives_at_its_receiver(size: int, data: st.DataObject) -> None:
    """Any number of bytes, among them none and more than fits into a buffer, in both directions at once."""
    amounts = st.sampled_from([None, 0, 1, 38_000, MANY])
    drawn = {(a, b): data.draw(amounts) for a in range(size) for b in range(size) if a != b}
    counts = {pair: count for pair, count in drawn.items() if count is not None}
    found = meshes(size)

    def act(rank: int) -> dict[int, bytearray]:
        others = [peer for peer in range(size) if peer != rank]
        outgoing = {p: memoryview(filled(rank, p, counts[rank, p])) for p in others if (rank, p) in counts}
        landing = {p: bytearray(counts[p, rank]) for p in others if (p, rank) in counts}
        found[rank].swap(outgoing, {p: memoryview(room) for p, room in landing.items()}, 10.0)
        return landing

    for rank, landing in enumerate(together(size, act)):
        assert {p: filled(p, rank, counts[p, rank]) for p in landing} == landing
    for mesh in found:
        mesh.close()


def test_a_peer_that_has_gone_is_noticed_at_once() -> None:
    first, second, third = meshes(3)
    second.close()
    with pytest.raises(ConnectionError):
        first.swap({}, {1: memoryview(bytearray(1)), 2: memoryview(bytearray(1))}, 60.0)
    with pytest.raises(ConnectionError):  # a send may still succeed, into a buffer that is never read
        third.swap({1: memoryview(bytes(MANY))}, {1: memoryview(bytearray(1))}, 60.0)
    first.close()
    third.close()


def test_what_was_sent_before_closing_still_arrives() -> None:
    first, second = meshes(2)
    first.swap({1: memoryview(b"the last sum")}, {}, 10.0)
    first.close()
    landing = bytearray(12)
    second.swap({}, {0: memoryview(landing)}, 10.0)
    assert b"the last sum" == landing
    second.close()


@pytest.mark.fault("C09")
def test_a_silent_peer_times_out() -> None:
    first, second = meshes(2)
    with pytest.raises(TimeoutError, match=r"no answer from rank 1 within 0\.05 s"):
        first.swap({}, {1: memoryview(bytearray(1))}, 0.05)
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


def test_a_member_that_does_not_connect_times_out() -> None:
    with pytest.raises(TimeoutError, match="not every member connected in time"):
        Mesh(c10d.HashStore(), 0, 2, HOST, 0.3)


@pytest.mark.fault("C10")
def test_connections_without_the_token_are_closed() -> None:
    """They connect before the members do: one sends other bytes, one sends none, one disconnects."""
    store, intruders = c10d.HashStore(), []

    def act(rank: int) -> Mesh:
        if rank == 1:
            host, port, _ = store.get("mesh/0").decode().split()
            for sent in (b"x" * 64, b"", b"GET /"):
                intruders.append(socket.create_connection((host, int(port))))
                intruders[-1].sendall(sent)
            intruders[-1].close()
        return Mesh(store, rank, 2, HOST, 10.0)

    first, second = together(2, act)
    landing = bytearray(2)
    second.swap({0: memoryview(b"hi")}, {}, 10.0)
    first.swap({}, {1: memoryview(landing)}, 10.0)
    assert b"hi" == landing
    for one in (first, second, *intruders):
        one.close()


# --- as a group ---------------------------------------------------------------------------------------------------


def test_members_exchange_tensors_of_every_dtype() -> None:
    store = c10d.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)

    def act(rank: int) -> tuple[list[list[int]], list[torch.Tensor]]:
        group = TcpGroup(seat(store.port, rank, 3))
        places = [place.tolist() for place in swap_with_all(group, torch.tensor([rank, 5]))]
        state = [torch.full((300_000,), float(rank)), torch.tensor([rank], dtype=torch.int64),
                 torch.tensor([rank == 1]), torch.full((2,), rank, dtype=torch.bfloat16), torch.empty(0)]  # fmt: skip
        send_state(group, 1, [0, 2], state)
        group.close()
        return places, state

    for places, state in together(3, act):
        assert [[0, 5], [1, 5], [2, 5]] == places
        assert [1.0] * 4 == [float(vector.float().mean()) for vector in state[:4]]


def test_a_lost_peer_raises_peer_lost() -> None:
    store = c10d.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    first, second = together(2, lambda rank: TcpGroup(seat(store.port, rank, 2)))
    second.close()
    with pytest.raises(PeerLost, match=r"rank 1 has closed|Connection reset|Broken pipe"):
        first.swap({}, {1: torch.empty(4)})
    first.close()


def test_closing_the_store_ends_the_wait_for_a_member() -> None:
    stores = [c10d.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)]
    port, began = stores[0].port, time.monotonic()

    def act(rank: int) -> TcpGroup | None:
        if rank == 0:
            return TcpGroup(seat(port, 0, 2))
        time.sleep(0.3)
        stores.clear()
        return None

    error, _ = together(2, act)
    assert isinstance(error, PeerLost)
    assert time.monotonic() - began < 5


def seat(port: int, rank: int, size: int) -> Seat:
    return Seat(HOST, port, "1", rank, size, HOST, 10.0)
