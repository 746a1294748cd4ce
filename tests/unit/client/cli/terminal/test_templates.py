"""Templates of `warmlog consume --format`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.client.cli.printed_batch import batch_of
from warmlog.cli.terminal.formats import compile_template, unescape


def test_every_token_stands_for_its_field() -> None:
    batch = batch_of(b"IAH", keys=[b"UA"], headers=[[("a", b"1"), ("b", None)]])
    written = compile_template("%t %p %o %k %v %T %s %h %%")(batch, 1)
    assert written == b"flights 3 100 UA IAH 2013-07-01T00:00:00.123Z 1372636800123 a=1,b= %\n"


def test_a_record_ends_with_a_newline_unless_the_template_ends_with_one_or_with_a_zero_byte() -> None:
    batch = batch_of(b"a", b"b")
    assert compile_template("%v")(batch, 2) == b"a\nb\n"
    assert compile_template(r"%v\n")(batch, 2) == b"a\nb\n"
    assert compile_template(r"%v\0")(batch, 2) == b"a\0b\0"
    assert compile_template(r"%v\t")(batch, 2) == b"a\t\nb\t\n"


def test_bytes_are_written_as_they_are_and_null_is_nothing() -> None:
    batch = batch_of(b"\xff\x00%d", None, keys=[None, b"%s"])
    assert compile_template("%k=%v")(batch, 2) == b"=\xff\x00%d\n%s=\n"


def test_only_as_many_records_as_wanted_are_written() -> None:
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
