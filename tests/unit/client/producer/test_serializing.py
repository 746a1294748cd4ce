"""Serializers and a partitioner of the user's own."""

import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import warmlog
from fake_broker import FakeBroker
from warmlog import serializers

pytestmark = pytest.mark.usefixtures("quick_clock")


def producer(broker: FakeBroker, **options: Any) -> warmlog.Producer[Any, Any]:
    return warmlog.Producer(broker.address, retry_backoff_ms=5, linger_ms=2, **options)


async def test_what_is_sent_is_serialized_once_also_while_it_waits_for_its_topic() -> None:
    seen: list[object] = []

    def counted(item: object) -> bytes:
        seen.append(item)
        return serializers.json(item)

    options = {"key_serializer": serializers.text, "value_serializer": counted}
    async with FakeBroker(t=1) as broker, producer(broker, **options) as client:
        waiting = [client.send("t", {"n": 1}, key="ä"), client.send("t", [2])]
        for sent in waiting:
            await sent
        client.send("t", 3, key="k")
        await client.send("t", None, key="k")
        await client.send_many("t", [4, None], keys=["k", None])
        batches = broker.topics["t"][0].read_all()
    assert seen == [{"n": 1}, [2], 3, 4]
    assert [value for batch in batches for value in batch.values()] == [b'{"n":1}', b"[2]", b"3", None, b"4", None]
    keys = [batch.keys() for batch in batches]
    assert [key for own in keys for key in own] == ["ä".encode(), None, b"k", b"k", b"k", None]


async def test_bytes_are_serialized_too() -> None:
    options: dict[str, Any] = {"value_serializer": lambda item: item + b"!", "key_serializer": lambda item: item * 2}
    async with FakeBroker(t=1) as broker, producer(broker, **options) as client:
        for _ in range(3):
            await client.send("t", b"v", key=b"k")
            client.send("t", b"v", key=b"k")
        await client.flush()
        await client.send_many("t", [b"v"], keys=[b"k"])
        batches = broker.topics["t"][0].read_all()
        assert {value for batch in batches for value in batch.values()} == {b"v!"}
        keys = [batch.keys() for batch in batches]
        assert {key for own in keys for key in own} == {b"kk"}


async def test_a_serializer_gets_the_items_of_a_column_and_never_the_columns_of_a_table() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, value_serializer=lambda item: str(item).encode()) as client:
        await client.send_many("t", pa.array(["a", None]))
        await client.send_many("t", pd.Series(["b", None]))
        for table in (pd.DataFrame({"a": [1]}), pl.DataFrame({"a": [1]}), pa.table({"a": [1]})):
            with pytest.raises(TypeError, match=r"^values: a list or a column expected, .*send_frame"):
                await client.send_many("t", table)
        batches = broker.topics["t"][0].read_all()
    assert [value for batch in batches for value in batch.values()] == [b"a", None, b"b", None]


async def test_what_a_serializer_must_return_is_named_and_its_own_error_is_raised() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, value_serializer=json.dumps) as client:
        with pytest.raises(TypeError, match="value_serializer returned str: bytes or None expected"):
            client.send("t", {"a": 1})
        with pytest.raises(TypeError, match="value_serializer returned str"):
            await client.send_many("t", [{"a": 1}])
        with pytest.raises(TypeError, match="not JSON serializable"):
            client.send("t", object())
        with pytest.raises(TypeError, match="a list of values expected, not one str"):
            await client.send_many("t", "text")


async def test_a_partitioner_chooses_for_every_record_that_names_no_partition() -> None:
    calls: list[tuple[bytes | None, int]] = []

    def by_length(key: bytes | None, partitions: int) -> int:
        calls.append((key, partitions))
        return len(key or b"") % partitions

    async with FakeBroker(t=3) as broker, producer(broker, partitioner=by_length) as client:
        for _ in range(2):
            assert (await client.send("t", b"v")).partition == 0
            assert (await client.send("t", b"v", key=b"kk")).partition == 2
            assert (await client.send("t", b"v", key=b"k", partition=2)).partition == 2
        assert calls == [(None, 3), (b"kk", 3)] * 2
        ranges = (await client.send_many("t", [b"a", b"b", b"c", b"d"], keys=[b"1", b"12", b"2", None])).ranges
        assert {partition: sum(map(len, found)) for partition, found in ranges.items()} == {0: 1, 1: 2, 2: 1}
        assert broker.topics["t"][1].values() == [b"a", b"c"]
        await client.send_many("t", [b"e"])
        assert broker.topics["t"][0].values()[-1] == b"e"


def broken(key: bytes | None, partitions: int) -> int:
    raise KeyError("which")


@pytest.mark.parametrize(
    ("partitioner", "text"),
    [
        (lambda _key, count: count, r"returned 2 for key b'k': an int from 0 to 1 expected"),
        (lambda _key, _count: -1, "returned -1"),
        (lambda _key, _count: True, "returned True"),
        (lambda _key, _count: None, "returned None"),
        (broken, r"raised KeyError\('which'\) for key b'k'"),
    ],
)
async def test_a_wrong_partition_is_an_error_that_names_it(partitioner: Callable[..., Any], text: str) -> None:
    async with FakeBroker(t=2) as broker, producer(broker, partitioner=partitioner) as client:
        for _ in range(2):  # the topic is not known, and known
            with pytest.raises(ValueError, match=text):
                await client.send("t", b"v", key=b"k")
        with pytest.raises(warmlog.PartitionerFailed, match=text):
            await client.send_many("t", [b"v"], keys=[b"k"])
        await client.send("t", b"v", key=b"k", partition=1)
        assert broker.topics["t"][1].values() == [b"v"]


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer", "partitioner"])
def test_the_options_are_checked(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}='json': a function or None expected, not str"):
        warmlog.Producer("127.0.0.1:1", **{name: "json"})  # type: ignore[arg-type]


def test_ready_made_serializers() -> None:
    assert serializers.json({"ä": [1, None]}) == '{"ä":[1,null]}'.encode()
    assert serializers.text("ä") == "ä".encode()
    with pytest.raises(TypeError, match="text must be str, not int"):
        serializers.text(5)  # type: ignore[arg-type]
