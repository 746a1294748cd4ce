"""Recipes as functions: failed records with where they come from, a topic as a table, records that wait."""

import time
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from warmlog_protocol.batch import encode_batch


def headers_of(sent: dict[str, Any]) -> dict[str, bytes]:
    return dict(sent["headers"])


def test_a_failed_record_keeps_what_it_was_and_counts_its_failures() -> None:
    record = warmlog.Record("orders", 3, 17, 1234, b"k", None, [("trace", b"1"), ("trace", b"2"), ("empty", None)])
    sent = warmlog.failed_record(record, ValueError("no"))
    assert (sent["key"], sent["value"], sent["headers"][:3]) == (b"k", None, list(record.headers))
    again = warmlog.Record("orders.retry", 0, 5, 9999, sent["key"], sent["value"], sent["headers"])
    twice = warmlog.failed_record(again, KeyError("ü" * 2000))
    assert [header for header in twice["headers"] if not header[0].startswith("failed.")] == list(record.headers)
    assert len(twice["headers"]) == len(sent["headers"]) == 3 + 6
    found = headers_of(twice)
    error = found.pop("failed.error")
    assert found == {
        "trace": b"2",
        "empty": None,
        "failed.topic": b"orders",
        "failed.partition": b"3",
        "failed.offset": b"17",
        "failed.timestamp_ms": b"1234",
        "failed.attempts": b"2",
    }
    assert error.startswith(b"KeyError: ")
    assert len(error) == 1000


@pytest.mark.parametrize("attempts", [None, b"", b"many", b"\xff", b"-3", b"9" * 5000])
def test_attempts_that_are_no_number_count_as_none(attempts: bytes | None) -> None:
    record = warmlog.Record("orders", 3, 17, 1234, None, b"v", [("failed.attempts", attempts)])
    assert headers_of(warmlog.failed_record(record, ValueError("no")))["failed.attempts"] == b"1"


async def test_a_table_has_the_last_value_of_each_key_as_of_its_refresh() -> None:
    broker = FakeBroker(prices=2)
    broker.add_batch("prices", 0, encode_batch([b"1", b"2", b"x"], keys=[b"tea", b"tea", None], timestamps_ms=0))
    broker.add_batch("prices", 1, encode_batch([b"3", None], keys=[b"milk", b"milk"], timestamps_ms=0))
    async with broker, warmlog.KeyTable(broker.address, "prices") as table:
        assert dict(table) == {b"tea": b"2"}
        assert (len(table), table.get(b"milk"), b"tea" in table) == (1, None, True)
        assert await table.refresh() == set()
        broker.add_batch("prices", 0, encode_batch([None, b"4"], keys=[b"tea", b"coffee"], timestamps_ms=0))
        assert dict(table) == {b"tea": b"2"}
        assert await table.refresh() == {b"tea", b"coffee"}
        assert dict(table) == {b"coffee": b"4"}
        with pytest.raises(KeyError):
            table[b"tea"]


async def test_a_delayed_record_comes_when_it_is_old_enough() -> None:
    broker = FakeBroker(retry=1)
    now_ms = time.time_ns() // 1_000_000
    broker.add_batch("retry", 0, encode_batch([b"old", b"new"], timestamps_ms=[now_ms - 60_000, now_ms]))
    async with broker, warmlog.Consumer(broker.address, topics=["retry"]) as consumer:
        records = warmlog.delayed(consumer, 1.5)
        assert (await anext(records)).value == b"old"
        assert time.time() * 1000 < now_ms + 1500
        assert (await anext(records)).value == b"new"
        assert time.time() * 1000 >= now_ms + 1500
        await records.aclose()
