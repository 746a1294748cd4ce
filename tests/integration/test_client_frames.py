"""Arrow columns and DataFrames, sent without Spark to a real broker and read back as Arrow."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import warmlog
from broker_process import BrokerProcess
from warmlog.producer import frame_records

WHEN = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
WHEN_MS = int(WHEN.timestamp() * 1000)
TEXT = ["a", None, "", "ü"]
BYTES = [b"a", None, b"", "ü".encode()]
TYPES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()]


def chunked(items: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([items[:1], items[1:1], items[1:]])


COLUMNS = {
    **{str(kind): pa.array(TEXT, pa.string()).cast(pa.large_binary()).cast(kind) for kind in TYPES[:2]},
    **{str(kind): pa.array(BYTES if "binary" in str(kind) else TEXT, kind) for kind in TYPES[2:]},
    "chunked": chunked(pa.array(TEXT)),
    "chunked views": chunked(pa.array(TEXT, pa.string_view())),
    "sliced": pa.array(["before", *TEXT, "after"]).slice(1, 4),
    "dictionary": pa.array(TEXT).dictionary_encode(),
    "pandas text": pd.Series(TEXT),
    "pandas NaN": pd.Series(["a", float("nan"), "", "ü"]),
    "pandas bytes": pd.Series(BYTES),
    "pandas string": pd.Series(TEXT, dtype="string"),
    "pandas category": pd.Series(TEXT, dtype="category"),
    "polars text": pl.Series(TEXT),
    "polars bytes": pl.Series(BYTES),
    "polars category": pl.Series(TEXT, dtype=pl.Categorical),
    "polars chunks": pl.concat([pl.Series(TEXT[:2]), pl.Series(TEXT[2:])], rechunk=False),
}


@pytest.fixture
async def topic(broker: BrokerProcess) -> str:
    name = f"t{uuid4().hex}"
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(name, partitions=1, configs={"retention.ms": "-1"})
    return name


async def read(broker: BrokerProcess, topic: str) -> dict[str, list[Any]]:
    async with warmlog.Consumer(broker.address, topics=[topic], start="earliest") as consumer:
        found: dict[str, list[Any]] = (await consumer.to_arrow()).to_pydict()
        return found


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
async def test_a_column_is_sent_as_values_and_as_keys(broker: BrokerProcess, topic: str, column: Any) -> None:
    async with warmlog.Producer(broker.address) as producer:
        sent = await producer.send_many(topic, column, keys=column)
        assert sent.ranges == {0: [range(4)]}
        assert (await producer.send_many(topic, column[:0])).count == 0
    found = await read(broker, topic)
    assert found["value"] == found["key"] == BYTES


@pytest.mark.parametrize(
    "times",
    [
        pa.array([WHEN, WHEN]),
        pa.array([WHEN, WHEN], pa.timestamp("ns", "Europe/Berlin")),
        chunked(pa.array([WHEN_MS, WHEN_MS])),
        pd.Series([WHEN, WHEN]),
        pd.Series([WHEN_MS, WHEN_MS]),
        pd.Series([WHEN_MS, WHEN_MS], dtype="Int64"),
        pl.Series([WHEN, WHEN]),
        pl.Series([WHEN_MS, WHEN_MS]),
    ],
    ids=["us", "ns", "integers", "pandas", "pandas integers", "pandas nullable", "polars", "polars integers"],
)
async def test_a_column_gives_the_times(broker: BrokerProcess, topic: str, times: Any) -> None:
    async with warmlog.Producer(broker.address) as producer:
        await producer.send_many(topic, [b"1", b"2"], timestamps_ms=times)
    assert [when.timestamp() * 1000 for when in (await read(broker, topic))["timestamp"]] == [WHEN_MS] * 2


async def test_a_column_that_does_not_fit_is_named(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Producer(broker.address) as producer:
        with pytest.raises(TypeError, match=r"^values: a column of Python objects"):
            await producer.send_many(topic, pl.Series([b"x", object()], dtype=pl.Object))
        with pytest.raises(ValueError, match=r"^timestamps_ms: .*out of bounds"):
            await producer.send_many(topic, [b"1"], timestamps_ms=pa.array([(1 << 61) + 5], pa.timestamp("s")))
        for wrong in (pa.array([1]), pd.Series([1]), pl.Series([1])):
            with pytest.raises(TypeError, match=r"^values: a column of bytes or text expected, not of int64"):
                await producer.send_many(topic, wrong)
        with pytest.raises(TypeError, match=r"^values: .*struct.*send_frame$"):
            await producer.send_many(topic, pa.table({"a": ["x"]}))
        with pytest.raises(TypeError, match=r"^keys: .* object"):
            await producer.send_many(topic, [b"1", b"2"], keys=pd.Series(["a", 1]))
        with pytest.raises(TypeError, match=r"^timestamps_ms: timestamps .* expected, not string$"):
            await producer.send_many(topic, [b"1"], timestamps_ms=pa.array(["noon"]))
        with pytest.raises(ValueError, match="keys has 2 items for 1 values"):
            await producer.send_many(topic, pa.array(["a"]), keys=pa.array(["a", "b"]))
    assert (await read(broker, topic))["value"] == []


ROWS = {"id": [1, 2, 3], "city": ["Oslo", None, "Köln"], "ok": [True, None, False], "at": [WHEN] * 3}
OBJECTS = [
    {"id": i, "city": city, "ok": ok, "at": "2026-01-01T12:30:00Z"}
    for i, city, ok in zip(ROWS["id"], ROWS["city"], ROWS["ok"], strict=True)
]
FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas, filtered": lambda: pd.DataFrame({name: [each[0], *each] for name, each in ROWS.items()}).drop(index=0),
    "pandas, with an index": lambda: pd.DataFrame(ROWS).set_index("id"),
    "pandas, with two": lambda: pd.DataFrame(ROWS).set_index(["id", "city"]),
    "pandas, with a column as index": lambda: pd.DataFrame(ROWS).set_index("city", drop=False),
    "polars": lambda: pl.DataFrame(ROWS),
    "table": lambda: pa.table(ROWS),
    "batch": lambda: pa.record_batch(ROWS),
    "reader": lambda: pa.table(ROWS).to_reader(2),
    "chunks": lambda: pa.concat_tables([pa.table(ROWS)[:1], pa.table(ROWS)[1:]]),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
async def test_rows_are_sent_as_json(
    broker: BrokerProcess, topic: str, frame: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_records, "ROWS_PER_SLICE", 2)
    async with warmlog.Producer(broker.address) as producer:
        sent = await producer.send_frame(topic, frame(), key="city", timestamp="at")
        assert (sent.count, sent.ranges) == (3, {0: [range(3)]})
        await producer.send_frame(topic, frame(), key="id", columns=["ok", "id"], partition=0)
    found = await read(broker, topic)
    assert [json.loads(value) for value in found["value"][:3]] == OBJECTS
    assert found["value"][3] == b'{"ok":true,"id":1}'
    assert found["key"] == [b"Oslo", None, "Köln".encode(), b"1", b"2", b"3"]
    assert [when.timestamp() * 1000 for when in found["timestamp"][:3]] == [WHEN_MS] * 3


async def test_each_type_has_a_form_in_json(broker: BrokerProcess, topic: str) -> None:
    table = pa.table(
        {
            "nan": [float("nan")],
            "date": [WHEN.date()],
            "ns": pa.array([1_767_270_600_123_456_789], pa.timestamp("ns")),
            "bytes": pa.array(["ü".encode()], pa.binary_view()),
            "decimal": [Decimal("1.50")],
            "category": pa.array(["x"]).dictionary_encode(),
            "nested": pa.array([{"at": [1_767_270_600_123_456_789], "b": b"y"}]).cast(
                pa.struct({"at": pa.list_(pa.timestamp("ns")), "b": pa.binary()})
            ),
            "map": pa.array([[("k", b"z")]], pa.map_(pa.string(), pa.binary())),
            "views": pa.array([["z"]], pa.large_list(pa.string_view())),
            "fixed": pa.array([[b"z"]], pa.list_(pa.binary(), 1)),
            "null": pa.nulls(1),
        }
    )
    async with warmlog.Producer(broker.address) as producer:
        await producer.send_frame(topic, table)
    (value,) = (await read(broker, topic))["value"]
    assert json.loads(value) == {
        "nan": None,
        "date": "2026-01-01",
        "ns": "2026-01-01T12:30:00.123456",
        "bytes": "ü",
        "decimal": "1.50",
        "category": "x",
        "nested": {"at": ["2026-01-01T12:30:00.123456"], "b": "y"},
        "map": [["k", "z"]],
        "views": ["z"],
        "fixed": ["z"],
        "null": None,
    }


async def test_an_empty_frame_sends_nothing(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Producer(broker.address) as producer:
        for frame in (pl.DataFrame({"a": []}), pd.DataFrame({"a": []}), pa.table({"a": pa.array([], pa.string())})):
            assert await producer.send_frame(topic, frame) == warmlog.RecordMetadataRanges(topic, 0, {})
        with pytest.raises(warmlog.UnknownTopicOrPartition):
            await producer.send_frame(f"{topic}-missing", pl.DataFrame({"a": []}))


@pytest.mark.parametrize(
    ("error", "text", "frame", "options"),
    [
        (ValueError, r"there is no column 'b'; the frame has \['a'\]", pa.table({"a": [1]}), {"key": "b"}),
        (TypeError, r"columns='a': a list of names expected, such as \['a'\]", pa.table({"a": [1]}), {"columns": "a"}),
        (ValueError, "no column is left", pa.table({"a": [1]}), {"columns": []}),
        (ValueError, "more than one column has the name 'a'", pa.table([[1], [2]], names=["a", "a"]), {}),
        (TypeError, "key='a': .* not of double", pa.table({"a": [1.5]}), {"key": "a"}),
        (TypeError, "timestamp='a': .* not string", pa.table({"a": ["noon"]}), {"timestamp": "a"}),
        (ValueError, "column 'a' of large_binary has no form in JSON: .*UTF", pa.table({"a": [b"\xff"]}), {}),
        (ValueError, "column 'a' of list<.*UTF", pa.table({"a": [[b"\xff"]]}), {}),
        (ValueError, "column 'a' of timestamp", pa.table({"a": pa.array([1 << 62], pa.timestamp("us"))}), {}),
        (
            TypeError,
            "column 'a': a column of Python objects",
            pl.DataFrame({"a": pl.Series([{1}], dtype=pl.Object)}),
            {},
        ),
        (ValueError, "column 'a' of .*Mars", pa.table({"a": pa.array([0], pa.timestamp("s", "Mars"))}), {}),
        (TypeError, "a DataFrame .* expected, not builtins.list", [{"a": 1}], {}),
        (TypeError, r"not polars.LazyFrame: collect\(\) it", pl.LazyFrame({"a": [1]}), {}),
    ],
)
async def test_a_frame_that_does_not_fit_is_refused(
    broker: BrokerProcess, topic: str, error: type[Exception], text: str, frame: Any, options: dict[str, Any]
) -> None:
    async with warmlog.Producer(broker.address) as producer:
        with pytest.raises(error, match=text):
            await producer.send_frame(topic, frame, **options)
    assert (await read(broker, topic))["value"] == []


async def test_an_error_tells_what_is_there(broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_records, "ROWS_PER_SLICE", 2)
    async with warmlog.Producer(broker.address) as producer:
        with pytest.raises(ValueError, match="column 'a'") as caught:
            await producer.send_frame(topic, pa.table({"a": [b"1", b"2", b"\xff"]}))
    assert caught.value.__notes__ == ["2 rows before it are acknowledged"]
    assert len((await read(broker, topic))["value"]) == 2


async def test_without_pyarrow_it_is_told(broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = pl.Series(["a"])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    async with warmlog.Producer(broker.address) as producer:
        with pytest.raises(ModuleNotFoundError, match=r"values as polars.Series needs pyarrow and numpy: pip install"):
            await producer.send_many(topic, text)
        assert (await producer.send_many(topic, pd.Series([b"a"]))).count == 1
