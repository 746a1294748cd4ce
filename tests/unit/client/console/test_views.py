"""How the bytes of records are shown, whatever they are."""

import io
import json

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.cli.terminal.json_records import write_json_records
from warmlog.console import views
from warmlog.console.reading import Row

ROW = Row("t", 1, 7, 1_700_000_000_000, b"key", b'{"a": 1}', [("h", b"\xff"), ("n", None)])


@given(st.binary())
def test_any_bytes_are_a_text_that_can_be_shown(data: bytes) -> None:
    for letter in views.text_of(data):
        assert letter.isprintable() or letter in "\n\t"


@given(st.text())
def test_any_text_is_shown_without_what_turns_its_direction_or_obeys(text: str) -> None:
    shown = views.text_of(text.encode("utf-8", errors="surrogatepass"))
    assert not set(shown) & set("\x1b\r\x00\u202e\u2066\ufeff")


def test_null_and_empty_are_told_apart() -> None:
    assert views.text_of(None) == "null"
    assert views.text_of(b"") == "(empty)"
    assert views.text_of(b"null") == "null"


def test_escape_codes_and_broken_text_are_escaped() -> None:
    assert views.text_of(b"\x1b[31mred\xff\n<b>") == "\\x1b[31mred\\xff\n<b>"


def test_a_preview_is_short_and_one_line() -> None:
    assert views.preview(b"a\nb") == "a b"
    assert len(views.preview(b"x" * 10_000_000)) == views.PREVIEW + 1


def test_hex_has_offsets_bytes_and_letters() -> None:
    assert views.hex_of(b"warmlog\x00\xffabcdefgh").splitlines() == [
        "00000000  77 61 72 6d 6c 6f 67 00 ff 61 62 63 64 65 66 67  warmlog..abcdefg",
        "00000010  68                                               h",
    ]


def test_json_is_a_tree_that_can_be_folded() -> None:
    (root,) = views.tree_of(views.json_of(b'{"a": [1, null], "<b>": "x"}'))
    assert root["label"] == "value {} 2"
    assert [each["label"] for each in root["children"]] == ["a [] 2", '<b>: "x"']
    assert views.json_of(b"{") is None
    assert views.json_of(None) is None


def test_a_tree_with_too_many_parts_and_one_that_is_too_deep_are_not_drawn() -> None:
    assert views.tree_of(list(range(views.MAX_NODES + 1))) == []
    for depth in (views.MAX_DEPTH + 1, 500):
        nested = views.json_of(b"[" * depth + b"]" * depth)
        assert nested is not None
        assert views.tree_of(nested) == []
    assert views.tree_of(views.json_of(b"[" * views.MAX_DEPTH + b"]" * views.MAX_DEPTH))
    assert views.json_of(b"[" * 100_000) is None


def test_fields_of_json_objects_are_columns() -> None:
    rows = [Row("t", 0, n, 0, None, value) for n, value in enumerate((b'{"a": 1, "b": "x"}', b"no", b'{"c": null}'))]
    names, lines = views.fields_of(rows, lambda _: None)
    assert names == ["a", "b", "c"]
    assert lines == [["1", "x", ""], ["", "", ""], ["", "", ""]]


def test_a_decoded_value_is_in_place_of_the_bytes() -> None:
    assert views.text_of(b"\x00", {"a": 1}) == '{"a":1}'
    assert views.text_of(b"\x00", "text") == "text"


def test_json_lines_are_those_of_the_command_line() -> None:
    assert json.loads(write_json_records([ROW])) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp_ms": 1_700_000_000_000,
        "key": "key",
        "value": '{"a": 1}',
        "headers": [{"name": "h", "value": "/w==", "value_encoding": "base64"}, {"name": "n", "value": None}],
    }


@pytest.mark.parametrize("rows", [[], [ROW, Row("t", 0, 8, 0, None, None)]])
def test_parquet_keeps_bytes_and_nulls(rows: list[Row]) -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(views.to_parquet(rows)))
    assert table.column_names == ["topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"]
    assert table["value"].to_pylist() == [row.value for row in rows]
