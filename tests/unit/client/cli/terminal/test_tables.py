"""Tables for people: what fits how, figures with units; the counts and the status line of a long command."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.cli.terminal import status, tables
from warmlog.cli.terminal.status import Progress

LONG = "orders." + "x" * 200 + ".eu"
SENTENCE = "How many bytes of log are between two index entries: a smaller value makes lookups faster"


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [(0, "0.0 s"), (59_900, "59.9 s"), (60_000, "1.0 min"), (5_400_000, "1.5 h"), (180_000_000, "2.1 d")],
)
def test_ages_have_the_largest_unit_that_fits(age_ms: int, text: str) -> None:
    assert tables.human_age(age_ms) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_503_238_553, "1.4 GiB"),
        (1023 * 1024, "1.0 MiB"),
        (270_553_174_016, "252 GiB"),
        (2**63 - 1, "8.0 EiB"),
        (-1, "unknown"),
    ],
)
def test_sizes_have_the_unit_that_keeps_them_short(size_bytes: int, text: str) -> None:
    assert tables.human_size(size_bytes) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", "604800000", "7d"),
        ("retention.ms", "-1", "-1 (no limit)"),
        ("flush.ms", "100", "100ms"),
        ("segment.bytes", "16777216", "16MiB"),
        ("max.message.bytes", "1048588", "1048588"),
        ("flush.messages", str(2**63 - 1), "no limit"),
        ("min.compaction.lag.ms", "0", "0"),
        ("cleanup.policy", "delete", "delete"),
    ],
)
def test_settings_are_shown_as_people_write_them_if_that_is_exact(name: str, value: str, text: str) -> None:
    assert tables.setting_text(name, value) == text


def test_durations_are_words() -> None:
    assert [tables.duration_words(each) for each in (86_400_000, 604_800_000, 5_400_000, 1)] == [
        "1 day",
        "7 days",
        "90 minutes",
        "1 ms",
    ]


def test_a_time_is_that_of_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert tables.local_time(1_700_000_000_000) == "2023-11-15 03:43:20+05:30"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert tables.local_time(-1) == ""
    assert tables.local_time(2**62) == str(2**62)


def test_a_long_word_loses_its_middle() -> None:
    assert tables.shorten("orders-from-the-shop-eu", 12) == "orders…op-eu"
    assert tables.shorten("short", 12) == "short"
    assert len(tables.shorten("目录" * 20, 12)) <= 12


def test_numbers_are_at_the_right_and_texts_at_the_left() -> None:
    assert tables.draw(
        ("topic", "records", "size"),
        [("a", tables.Count(2353), tables.Size(0)), ("bb", tables.Count(7), tables.Size(2048))],
        80,
    ) == [
        "topic  records     size",
        "─────  ───────  ───────",
        "a        2,353      0 B",
        "bb           7  2.0 KiB",
    ]


def test_headings_and_sentences_wrap_between_words_before_a_name_is_shortened() -> None:
    drawn = tables.draw(("high watermark", "what it does"), [(2353, SENTENCE)], 45)
    assert max(map(len, drawn)) <= 45
    assert drawn[0].split() == ["high", "what", "it", "does"]
    assert " ".join(line[9:].strip() for line in drawn[3:]).endswith("makes lookups faster")


def test_a_table_that_does_not_fit_is_shown_as_blocks_with_whole_numbers() -> None:
    at = tables.Instant(1_700_000_000_000)
    drawn = tables.draw(("topic", "last record", "size"), [(LONG, at, tables.Size(5)), ("b", at, tables.Size(6))], 30)
    assert "last record  " + tables.local_time(at) in drawn
    assert drawn.count("") == 1
    assert drawn[0].startswith("topic")


def test_facts_wrap_below_their_own_text() -> None:
    drawn = tables.draw_facts([("topic", "a"), ("durability", SENTENCE), ("id", "x" * 90)], 50)
    assert drawn[0] == "topic       a"
    assert all(len(line) <= 50 for line in drawn[:-1])
    assert " ".join(line[12:] for line in drawn[1:-1]) == SENTENCE
    assert drawn[-1] == "id          " + "x" * 90


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in "".join(tables.draw(("a",), [("x\x1b[31my",)], 80))


WORDS = st.text("abc-/.", min_size=1, max_size=60)
CELLS = st.one_of(
    st.lists(WORDS, max_size=8).map(" ".join),
    st.integers(0, 10**18),
    st.integers(0, 10**18).map(tables.Count),
    st.integers(-1, 10**18).map(tables.Size),
    st.integers(-1, 4 * 10**12).map(tables.Instant),
)


@given(st.integers(1, 7).flatmap(lambda size: st.lists(st.lists(CELLS, min_size=size, max_size=size), max_size=4)))
def test_no_cell_is_broken_inside_a_word_or_number(rows: list[list[tables.Cell]]) -> None:
    from warmlog.cli.terminal.tables import shown

    headings = [f"heading {number}" for number in range(len(rows[0]) if rows else 1)]
    drawn = tables.draw(headings, rows, 80)
    assert max(map(len, drawn), default=0) <= 80
    pieces = {piece for line in drawn for piece in re.split(" +", line)}
    for cell in (cell for row in rows for cell in row):
        for word in shown(cell).split():
            heads = [piece.partition("…") for piece in pieces if "…" in piece]
            is_shortened = any(word.startswith(head) and word.endswith(tail) for head, _, tail in heads)
            assert word in pieces or (isinstance(cell, str) and is_shortened)


def test_one_is_singular() -> None:
    progress = Progress(shows_status=False)
    assert progress.counted_records() == "0 records were"
    progress.add(1, 5)
    assert progress.summary().startswith("1 record, 5 B in ")
    assert progress.counted_records() == "1 record was"
    progress.add(1999, 5)
    assert progress.summary().startswith("2,000 records, ")
    assert progress.counted_records() == "2,000 records were"


def test_input_of_known_size_has_a_share(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(status, "INTERVAL_S", 0.0)
    progress = Progress(shows_status=True, total_bytes=400)
    progress.add(10, 90)
    assert ", 25%, 0 s left" in capsys.readouterr().err
    progress.add(20, 380)
    assert ", 100%, 0 s left" in capsys.readouterr().err


def test_an_input_of_unknown_size_has_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(status, "INTERVAL_S", 0.0)
    Progress(shows_status=True).add(10, 90)
    line = capsys.readouterr().err
    assert "10 records" in line
    assert "%" not in line
