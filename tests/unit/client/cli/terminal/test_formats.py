"""What `warmlog consume` prints for raw and json."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.client.cli.printed_batch import batch_of
from warmlog.cli.terminal.formats import batch_writer, write_raw
from warmlog.cli.terminal.json_records import write_json

cells = st.none() | st.binary(max_size=12) | st.text(max_size=6).map(str.encode)


def test_raw_is_each_value_as_it_is_and_a_newline() -> None:
    assert write_raw(batch_of(b"a", b"", b"\xff\x00"), 3) == b"a\n\n\xff\x00\n"


def test_raw_null_is_an_empty_line() -> None:
    assert write_raw(batch_of(b"a", None, b"c"), 3) == b"a\n\nc\n"


def test_only_as_many_records_as_wanted_are_written() -> None:
    assert write_raw(batch_of(b"a", b"b", b"c"), 2) == b"a\nb\n"
    assert len(write_json(batch_of(b"a", b"b", b"c"), 2).splitlines()) == 2


def test_json_names_every_field() -> None:
    line = write_json(batch_of("Zürich".encode(), keys=[b"ZRH"], headers=[[("source", b"demo")]]), 1)
    assert json.loads(line) == {
        "topic": "flights",
        "partition": 3,
        "offset": 100,
        "timestamp_ms": 1372636800123,
        "key": "ZRH",
        "value": "Zürich",
        "headers": [{"name": "source", "value": "demo"}],
    }


def test_json_null_and_empty_are_two_things_and_headers_are_left_out_where_there_are_none() -> None:
    lines = [json.loads(line) for line in write_json(batch_of(None, b"", keys=[b"", None]), 2).splitlines()]
    assert [(line["key"], line["value"]) for line in lines] == [("", None), (None, "")]
    assert "headers" not in lines[0]


def test_json_says_which_cells_are_base64() -> None:
    batch = batch_of(b"\xff\x00", b"text", keys=[b"k", b"\xfe"], headers=[[("h", b"\xfd")], []])
    first, second = (json.loads(line) for line in write_json(batch, 2).splitlines())
    assert (first["value"], first["value_encoding"]) == ("/wA=", "base64")
    assert "key_encoding" not in first
    assert first["headers"] == [{"name": "h", "value": "/Q==", "value_encoding": "base64"}]
    assert (second["key"], second["key_encoding"]) == ("/g==", "base64")
    assert "value_encoding" not in second


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=8))
def test_json_gives_back_the_bytes_of_every_key_and_value(records: list[tuple[bytes | None, bytes | None]]) -> None:
    keys, values = zip(*records, strict=True)
    lines = write_json(batch_of(*values, keys=list(keys)), len(records)).splitlines()
    parsed = [json.loads(line) for line in lines]
    assert [(_bytes_of(line, "key"), _bytes_of(line, "value")) for line in parsed] == records


def _bytes_of(line: dict[str, str | None], name: str) -> bytes | None:
    text = line[name]
    if text is None:
        return None
    return base64.b64decode(text) if line.get(f"{name}_encoding") == "base64" else text.encode()


def test_a_format_is_raw_json_or_has_a_token() -> None:
    assert batch_writer("raw") is write_raw
    assert batch_writer("json") is write_json
    assert batch_writer("%v")(batch_of(b"x"), 1) == b"x\n"
    with pytest.raises(ValueError, match="neither raw, nor json"):
        batch_writer("yaml")
