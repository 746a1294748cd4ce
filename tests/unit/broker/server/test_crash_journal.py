"""The journal of starts: what is read back of what was written, whatever became of the file."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.server.crash_journal import MAX_KEPT, OPENING, Start, StartJournal, pack_line, read_starts


def begun(directory: Path, now_ms: int = 1000) -> StartJournal:
    journal = StartJournal(directory)
    journal.begin(now_ms)
    return journal


def test_a_new_directory_has_had_no_crash(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    assert journal.earlier == []
    journal.close()


def test_a_start_that_did_not_end_is_found_with_its_step_and_its_partitions(tmp_path: Path) -> None:
    journal = begun(tmp_path, 1000)
    for name in ("a-0", "b-0", "c-0"):
        journal.add("checking", name)
    journal.add("checked", "b-0")
    journal.close()
    again = begun(tmp_path, 5000)
    assert again.earlier == [Start(1000, OPENING, {"a-0": None, "c-0": None})]
    again.add("checking", "a-0")
    again.add("checked", "a-0")
    again.add("step", "serving")
    again.close()
    assert begun(tmp_path, 9000).earlier == [
        Start(1000, OPENING, {"a-0": None, "c-0": None}),
        Start(5000, "serving"),
    ]


def test_an_orderly_stop_forgets_everything(tmp_path: Path) -> None:
    begun(tmp_path).close()
    begun(tmp_path).forget(is_all=True)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_was_refused_takes_back_its_own_lines_only(tmp_path: Path) -> None:
    begun(tmp_path, 1).close()
    begun(tmp_path, 2).forget(is_all=False)
    journal = begun(tmp_path, 3)
    assert [start.begun_ms for start in journal.earlier] == [1]
    journal.forget(is_all=True)
    begun(tmp_path).forget(is_all=False)
    assert list(tmp_path.iterdir()) == []


def test_the_file_does_not_grow_with_crashes(tmp_path: Path) -> None:
    for number in range(100):
        begun(tmp_path, number).close()
    assert [start.begun_ms for start in begun(tmp_path).earlier] == list(range(100 - MAX_KEPT, 100))


def test_a_directory_that_cannot_be_written_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    journal = begun(tmp_path / "missing")
    journal.add("checking", "a-0")
    journal.forget(is_all=True)
    journal.forget(is_all=False)


LINES = [
    pack_line({"start": 1}),
    pack_line({"checking": "a-0"}),
    pack_line({"start": 2}),
    pack_line({"step": "serving", "at": 3}),  # 0.1.0 noted the time as well
]


@given(st.integers(0, sum(map(len, LINES))))
def test_a_file_cut_anywhere_tells_of_its_whole_lines(size_bytes: int) -> None:
    data = b"".join(LINES)[:size_bytes]
    whole = b"".join(line for line in data.splitlines(keepends=True) if line in LINES)
    # A line without its end is still a whole one.
    if data and not data.endswith(b"\n") and data.splitlines()[-1] + b"\n" in LINES:
        whole += data.splitlines()[-1]
    assert read_starts(data) == read_starts(whole)


@given(st.binary(max_size=200))
def test_other_bytes_say_nothing(data: bytes) -> None:
    assert read_starts(data) == []


def test_a_damaged_line_is_left_out_and_the_others_hold() -> None:
    lines = list(LINES)
    lines[1] = lines[1].replace(b"a-0", b"b-0")
    assert read_starts(b"".join(lines)) == [Start(1), Start(2, "serving")]
