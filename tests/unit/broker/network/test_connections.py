"""Limits on connections: in total, and for each address."""

import asyncio

from warmlog_broker.network.connections import Connections


class FakeConnection:
    def __init__(self, host: str) -> None:
        self.host = host

    def stop(self) -> None: ...

    def close(self, reason: str) -> None: ...


async def test_the_total_is_limited() -> None:
    connections = Connections(2, 10)
    first = FakeConnection("a")
    for connection in (first, FakeConnection("b")):
        assert connections.refusal(connection.host) == ""
        connections.add(connection)
    assert "max.connections" in connections.refusal("c")
    connections.remove(first)
    assert connections.refusal("c") == ""


async def test_each_address_is_limited() -> None:
    connections = Connections(10, 1)
    held = FakeConnection("a")
    connections.add(held)
    assert "max.connections.per.ip" in connections.refusal("a")
    assert connections.refusal("b") == ""
    connections.remove(held)
    connections.remove(held)
    assert connections.refusal("a") == ""
    assert len(connections) == 0


async def test_each_principal_is_limited_if_it_has_a_limit() -> None:
    connections = Connections(10, 10)
    first, second = FakeConnection("a"), FakeConnection("a")
    for connection in (first, second):
        connections.add(connection)
    assert connections.identify(first, "User:alice", 1) == ""
    assert connections.identify(first, "User:alice", 1) == "", "it authenticates again"
    assert connections.identify(second, "User:alice", 1) == (
        "User:alice has 1 connections open, as many as its quota allows"
    )
    assert connections.identify(second, "User:bob", 1) == ""
    connections.remove(first)
    assert connections.identify(second, "User:alice", 1) == ""
    assert connections.identify(first, "User:bob", 1) == ""


async def test_connections_count_for_their_principal_also_before_it_has_a_limit() -> None:
    connections = Connections(10, 10)
    held = [FakeConnection("a") for _ in range(3)]
    for connection in held:
        connections.add(connection)
        assert connections.identify(connection, "User:alice", None) == ""
    late = FakeConnection("a")
    assert connections.identify(late, "User:alice", 3) != ""
    connections.remove(held[0])
    assert connections.identify(late, "User:alice", 3) == ""


async def test_waiting_ends_when_the_last_one_has_gone_or_the_time_is_over() -> None:
    connections = Connections(10, 10)
    await connections.wait_until_gone(10)
    held = FakeConnection("a")
    connections.add(held)
    await connections.wait_until_gone(0.01)
    assert len(connections) == 1
    asyncio.get_running_loop().call_later(0.01, connections.remove, held)
    await connections.wait_until_gone(10)
    assert len(connections) == 0
