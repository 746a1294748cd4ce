"""Limits on connections: in total, and for each address."""

import asyncio

from warmlog_broker.network.connections import PATIENCE_S, Connections

NOW_S = 100.0


class FakeConnection:
    def __init__(self, host: str) -> None:
        self.host = host
        self.reason = ""

    def stop(self) -> None: ...

    def close(self, reason: str) -> None:
        self.reason = reason


async def test_the_total_is_limited() -> None:
    connections = Connections(2, 10)
    first = FakeConnection("a")
    for connection in (first, FakeConnection("b")):
        assert connections.refusal(connection.host, NOW_S) == ""
        connections.add(connection, NOW_S)
    assert "max.connections" in connections.refusal("c", NOW_S)
    connections.remove(first)
    assert connections.refusal("c", NOW_S) == ""


async def test_one_more_than_the_limit_ends_the_oldest_that_does_not_authenticate() -> None:
    connections = Connections(3, 10)
    known, oldest, next_oldest = (FakeConnection(name) for name in "abc")
    for number, connection in enumerate((known, oldest, next_oldest)):
        connections.add(connection, NOW_S + number)
    connections.identify(known, "User:alice", None)
    assert "max.connections" in connections.refusal("d", NOW_S + 1)
    assert connections.refusal("d", NOW_S + 1 + PATIENCE_S) == ""
    assert "has not authenticated" in oldest.reason
    assert "max.connections" in connections.refusal("d", NOW_S + 1 + PATIENCE_S), "it ends one for one"
    assert not known.reason
    assert not next_oldest.reason
    for connection in (oldest, next_oldest):
        connections.remove(connection)
    connections.add(FakeConnection("e"), NOW_S + 2)
    assert connections.refusal("f", NOW_S + 2) == ""


async def test_each_address_is_limited() -> None:
    connections = Connections(10, 1)
    held = FakeConnection("a")
    connections.add(held, NOW_S)
    assert "max.connections.per.ip" in connections.refusal("a", NOW_S)
    assert connections.refusal("b", NOW_S) == ""
    connections.remove(held)
    connections.remove(held)
    assert connections.refusal("a", NOW_S) == ""
    assert len(connections) == 0


async def test_each_principal_is_limited_if_it_has_a_limit() -> None:
    connections = Connections(10, 10)
    first, second = FakeConnection("a"), FakeConnection("a")
    for connection in (first, second):
        connections.add(connection, NOW_S)
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
        connections.add(connection, NOW_S)
        assert connections.identify(connection, "User:alice", None) == ""
    late = FakeConnection("a")
    assert connections.identify(late, "User:alice", 3) != ""
    connections.remove(held[0])
    assert connections.identify(late, "User:alice", 3) == ""


async def test_waiting_ends_when_the_last_one_has_gone_or_the_time_is_over() -> None:
    connections = Connections(10, 10)
    await connections.wait_until_gone(10)
    held = FakeConnection("a")
    connections.add(held, NOW_S)
    await connections.wait_until_gone(0.01)
    assert len(connections) == 1
    asyncio.get_running_loop().call_later(0.01, connections.remove, held)
    await connections.wait_until_gone(10)
    assert len(connections) == 0
