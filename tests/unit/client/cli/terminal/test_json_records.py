"""Lines of JSON as records: what `consume` prints, `produce` reads; and what commands do about losses while reading."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.client.cli.printed_batch import batch_of
from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.json_records import read_json, write_json
from warmlog.cli.terminal.records import Damage, Parcel
from warmlog.errors import OffsetOutOfRange, UnreadableBatch

cells = st.none() | st.binary(max_size=12) | st.text(max_size=6).map(str.encode)
headers = st.lists(st.tuples(st.sampled_from(["", "a", "b", "é"]) | st.text(max_size=4), cells), max_size=4)
records = st.lists(st.tuples(cells, cells, headers, st.integers(0, 2**62 - 1)), min_size=1, max_size=8)


def read(
    *lines: str | bytes, lines_before: int = 0, partition: int | None = None, by_key: bool = False
) -> list[Parcel]:
    given_lines = [line.encode() if isinstance(line, str) else line for line in lines]
    return read_json(given_lines, lines_before, partition, by_key=by_key)


def refusal(*lines: str | bytes, lines_before: int = 0) -> str:
    with pytest.raises(CommandFailed) as caught:
        read(*lines, lines_before=lines_before)
    return str(caught.value)


@given(records)
def test_what_is_printed_is_read_back_without_loss(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
) -> None:
    keys, values, names, timestamps_ms = (list(column) for column in zip(*rows, strict=True))
    batch = batch_of(*values, keys=keys, headers=names, timestamps_ms=timestamps_ms)
    (parcel,) = read(*write_json(batch, len(rows)).splitlines())
    assert (parcel.keys, parcel.values, parcel.timestamps_ms) == (keys, values, timestamps_ms)
    assert parcel.headers is not None
    assert [list(own or ()) for own in parcel.headers] == names
    assert parcel.partition == batch.partition


def test_the_brokers_timestamps_are_marked_and_read_back() -> None:
    line = write_json(batch_of(b"x", is_log_append_time=True), 1)
    assert json.loads(line)["timestamp_type"] == "LogAppendTime"
    assert read(line)[0].timestamps_ms == [1372636800123]


def test_a_value_is_enough() -> None:
    before_ms = time.time_ns() // 1_000_000
    (parcel,) = read('{"value": "x"}', '{"value": null, "timestamp_ms": -1}')
    assert (parcel.values, parcel.keys, parcel.headers, parcel.partition) == (
        [b"x", None],
        [None, None],
        [None, None],
        None,
    )
    assert isinstance(parcel.timestamps_ms, list)
    assert all(before_ms <= timestamp_ms <= before_ms + 60_000 for timestamp_ms in parcel.timestamps_ms)


def test_records_are_parted_by_partition_in_their_order() -> None:
    lines = [f'{{"value": "{number}", "partition": {number % 2}}}' for number in range(5)]
    assert [(parcel.partition, parcel.values) for parcel in read(*lines)] == [
        (0, [b"0", b"2", b"4"]),
        (1, [b"1", b"3"]),
    ]
    assert [parcel.partition for parcel in read(*lines, partition=7)] == [7]
    assert [parcel.partition for parcel in read(*lines, by_key=True)] == [None]


def test_a_mistyped_field_names_the_line_and_the_nearest_field() -> None:
    assert refusal('{"value": "x"}', '{"value": "x", "kye": "k"}', lines_before=40) == (
        "line 42: unknown field 'kye'; did you mean key?"
    )
    assert "did you mean name?" in refusal('{"value": "x", "headers": [{"nmae": "a", "value": null}]}')
    assert "known are value, key" in refusal('{"value": "x", "zzz": 1}')


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"key": "k"}', "missing required field `value`"),
        ('{"value": {"a": 1}}', "Expected `str | null`, got `object`"),
        ('{"value": "x", "partition": -1}', "`int` >= 0"),
        ('{"value": "x", "timestamp_ms": "now"}', "Expected `int`, got `str`"),
        ('{"value": "x", "value_encoding": "hex"}', "value_encoding"),
        ("not JSON", "line 2: JSON is malformed"),
        ("", "line 2"),
        (b'{"value": "\xff"}', "line 2"),
        ('{"value": "a", "value_encoding": "base64"}', "line 2: value is not base64"),
        ('{"value": "", "key": "?", "key_encoding": "base64"}', "line 2: key is not base64"),
        (
            '{"value": "", "headers": [{"name": "h", "value": "?", "value_encoding": "base64"}]}',
            "line 2: header 'h' is not base64",
        ),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str | bytes, what: str) -> None:
    assert what in refusal('{"value": "fine"}', line)


def test_damage_is_reported_counted_and_fails_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    damage = Damage()
    damage.check("orders")
    with damage.skipped():
        raise UnreadableBatch("the CRC is wrong", "orders", 0, 3, 5)
    assert capsys.readouterr().err.startswith("warmlog: skipped: orders-0, offsets 3 to 4: the CRC is wrong")
    with pytest.raises(CommandFailed, match="orders: 1 range of offsets cannot be read"):
        damage.check("orders")


def test_a_loss_names_options_of_the_command_line() -> None:
    error = OffsetOutOfRange("a-0: offset 3 is not in the log. Seek to one of these, or set on_out_of_range")
    with pytest.raises(CommandFailed) as caught, Damage().skipped():
        raise error
    assert str(caught.value).startswith("a-0: offset 3 is not in the log. Begin elsewhere: --from earliest")


def test_batches_of_a_partition_become_one_parcel_in_order() -> None:
    first = batch_of(b"a", None, keys=[b"", None], timestamps_ms=[5, -1])
    second = batch_of(b"c", headers=[[("h", None)]], timestamps_ms=[7])
    parcel = Parcel.of([first, second], 4, now_ms=99)
    assert parcel == Parcel([b"a", None, b"c"], [b"", None, None], [5, 99, 7], [[], [], [("h", None)]], 4)
    assert Parcel.of([first], None, now_ms=99).headers is None
