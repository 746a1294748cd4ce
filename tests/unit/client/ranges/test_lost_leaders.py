"""Ranges whose leader is lost: any broker that is known names the new one, and readers come back at different times."""

from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from unit.client.ranges.scripted_broker import ScriptedBroker
from unit.client.ranges.test_range_reader import hang_up, log_of, read_offsets
from warmlog.ranges import range_reader
from warmlog_protocol.batch import encode_batch
from warmlog_transport import retries
from warmlog_transport.options import ConnectionOptions


async def test_a_table_is_read_from_the_broker_that_leads_after_the_leader_has_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_all = range_reader.read_all
    async with FakeBroker(t=1) as leader, FakeBroker(t=1) as other:
        for broker in (leader, other):
            broker.add_batch("t", 0, encode_batch([b"a", b"b"], timestamps_ms=0))

        async def read_without_leader(*arguments: Any) -> list[Any]:
            await leader.stop()
            return await read_all(*arguments)

        monkeypatch.setattr(range_reader, "read_all", read_without_leader)
        addresses = [leader.address, other.address]
        async with warmlog.Consumer(addresses, topics=["t"], unavailable_timeout_ms=2_000) as consumer:
            table = await consumer.to_arrow(columns=["value"])
        await leader.start()
    assert table["value"].to_pylist() == [b"a", b"b"]


def test_readers_that_lose_a_broker_at_the_same_time_do_not_come_back_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s: list[float] = []
    pause_s = retries.pause_s

    def noted(failures: int, options: ConnectionOptions) -> float:
        pauses_s.append(pause_s(failures, options))
        return pauses_s[-1]

    monkeypatch.setattr(retries, "pause_s", noted)
    for _ in range(20):
        with ScriptedBroker(log_of(20), [hang_up]) as broker:
            assert read_offsets(broker, (0, 20)) == list(range(20))
    assert len(pauses_s) == 20
    assert len(set(pauses_s)) > 10
