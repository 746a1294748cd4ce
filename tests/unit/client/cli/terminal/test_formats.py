"""What `warmlog consume` prints for raw, json and templates."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.client.cli.printed_batch import batch_of
from warmlog.cli.terminal.formats import batch_writer, compile_template, unescape, write_raw
from warmlog.cli.terminal.json_records import write_json
from warmlog.cli.terminal.times import format_ms

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


def test_every_token_stands_for_its_field() -> None:
    batch = batch_of(b"IAH", keys=[b"UA"], headers=[[("a", b"1"), ("b", None)]])
    written = compile_template("%t %p %o %k %v %T %s %h %%")(batch, 1)
    local = format_ms(1372636800123).encode()
    assert written == b"flights 3 100 UA IAH %b 1372636800123 a=1,b= %%\n" % local


def test_a_record_ends_with_a_newline_unless_the_template_ends_with_one_or_with_a_zero_byte() -> None:
    batch = batch_of(b"a", b"b")
    assert compile_template("%v")(batch, 2) == b"a\nb\n"
    assert compile_template(r"%v\n")(batch, 2) == b"a\nb\n"
    assert compile_template(r"%v\0")(batch, 2) == b"a\0b\0"
    assert compile_template(r"%v\t")(batch, 2) == b"a\t\nb\t\n"


def test_bytes_are_written_as_they_are_and_null_is_nothing() -> None:
    batch = batch_of(b"\xff\x00%d", None, keys=[None, b"%s"])
    assert compile_template("%k=%v")(batch, 2) == b"=\xff\x00%d\n%s=\n"


def test_a_template_writes_only_as_many_records_as_wanted() -> None:
    assert compile_template("%o")(batch_of(b"a", b"b", b"c"), 2) == b"100\n101\n"


def test_a_template_of_text_alone_is_written_for_each_record() -> None:
    assert compile_template(r"100%%")(batch_of(b"a", b"b"), 2) == b"100%\n100%\n"


@pytest.mark.parametrize("template", ["%x", "%", "%k %", "%V"])
def test_an_unknown_token_is_refused_and_the_known_ones_are_named(template: str) -> None:
    with pytest.raises(ValueError, match="is not a token: use %t %p %o %k %v %T %s %h or %%"):
        compile_template(template)


@pytest.mark.parametrize("template", [r"%v\x", "%v\\"])
def test_an_unknown_escape_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="is not an escape"):
        compile_template(template)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_without_tokens_stays_as_it_is(text: str) -> None:
    template = text.replace("\\", "\\\\").replace("%", "%%") + "%v"
    assert compile_template(template)(batch_of(b"!"), 1) == text.encode() + b"!\n"


def test_escapes_stand_for_their_bytes() -> None:
    assert unescape(r"a\tb\n\r\0\\c") == b"a\tb\n\r\0\\c"
