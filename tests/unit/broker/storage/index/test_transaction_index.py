"""The transaction index against Kafka's TransactionIndexTest, torn files, full disks and a plain list."""

import os
from bisect import bisect_left
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_sample import SAMPLE
from unit.broker.storage.log_files import no_file_grows_beyond, overwrite
from warmlog_broker.storage.index.abstract_index import CorruptIndex, InvalidIndexOffset
from warmlog_broker.storage.index.transaction_index import ENTRY_BYTES, AbortedTxn, TransactionIndex, pack_entry
from warmlog_broker.storage.io.open_files import ClosedFile, OpenFiles

FOUR = [AbortedTxn(0, 0, 10, 11), AbortedTxn(1, 5, 15, 13), AbortedTxn(2, 18, 35, 25), AbortedTxn(3, 32, 50, 40)]
FIFTH = AbortedTxn(3, 50, 60, 55)
FILE = SAMPLE / "transfers-0" / "00000000000000000000.txnindex"


def open_index(path: Path, base_offset: int = 0) -> TransactionIndex:
    return TransactionIndex(path, base_offset, OpenFiles())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.txnindex"


@pytest.fixture
def index(path: Path) -> TransactionIndex:
    index = open_index(path)
    for aborted in FOUR:
        index.append(aborted)
    return index


def test_entries_are_there_after_the_index_was_closed_and_opened_and_another_follows(  # TX-01
    index: TransactionIndex, path: Path
) -> None:
    index.close()
    again = open_index(path)
    again.append(FIFTH)
    assert list(again) == [*FOUR, FIFTH]
    assert again.entries == 5
    assert again.last == FIFTH
    again.sanity_check()


def test_the_bytes_of_an_entry_are_kafkas() -> None:
    expected = "000000000000000000020000000000000008000000000000004a0000000000000024"
    assert pack_entry(AbortedTxn(2, 8, 74, 36)).hex() == expected


def test_a_file_of_kafka_reads_as_its_own_tool_prints_it(tmp_path: Path) -> None:
    index = TransactionIndex.open_read_only(FILE, 0, OpenFiles())
    printed = [
        f"version: 0 producerId: {aborted.producer_id} firstOffset: {aborted.first_offset} "
        f"lastOffset: {aborted.last_offset} lastStableOffset: {aborted.last_stable_offset}"
        for aborted in index
    ]
    dump = FILE.with_name(FILE.name + ".dump").read_text().splitlines()
    assert printed == dump[1:]
    assert len(printed) > 10
    index.sanity_check()
    copy = open_index(tmp_path / FILE.name)
    copy.replace(index)
    assert copy.path.read_bytes() == FILE.read_bytes()


def test_entries_of_an_earlier_segment_are_refused(index: TransactionIndex, path: Path) -> None:  # TX-02
    index.close()
    with pytest.raises(CorruptIndex, match="follows offset 99"):
        open_index(path, base_offset=100).sanity_check()


def test_no_file_is_there_before_the_first_entry_nor_after_the_last_one(path: Path) -> None:
    index = open_index(path)
    assert (index.entries, list(index), index.last) == (0, [], None)
    assert index.collect_aborted(0, 100) == ([], False)
    index.truncate_to(0)
    index.reset()
    index.sanity_check()
    assert not index.has_unsynced_writes
    index.close()
    assert not path.exists()
    index.append(FOUR[0])
    assert path.is_file()
    index.truncate_to(10)
    assert not path.exists()
    assert not index.has_unsynced_writes


def test_the_first_entry_creates_the_file_also_after_close(path: Path) -> None:
    index = open_index(path)
    index.append(FOUR[0])
    index.close()
    index.append(FOUR[1])
    assert list(index) == FOUR[:2]


@pytest.mark.parametrize("last_offset", [50, 49, 10])
def test_an_entry_must_end_behind_the_last_one_also_after_the_file_was_opened_again(
    last_offset: int, index: TransactionIndex, path: Path
) -> None:
    for instance in (index, open_index(path)):
        with pytest.raises(InvalidIndexOffset, match=f"{last_offset} cannot follow 50"):
            instance.append(AbortedTxn(4, 5, last_offset, 60))
        assert list(instance) == FOUR


def test_an_entry_below_the_base_offset_is_refused(path: Path) -> None:
    with pytest.raises(InvalidIndexOffset):
        open_index(path, base_offset=100).append(FOUR[0])
    assert not path.exists()


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "expected", "is_complete"),
    [
        (0, 100, FOUR, False),  # TX-05
        (0, 32, FOUR[:3], True),
        (0, 35, FOUR, True),
        (10, 35, FOUR, True),
        (11, 35, FOUR[1:], True),
        (20, 41, FOUR[2:], False),
        (0, 11, FOUR[:1] + FOUR[1:1], True),
        (51, 100, [], False),
        (0, 0, [], True),
        (36, 40, FOUR[3:], True),
    ],
)
def test_what_was_aborted_between_two_offsets(
    fetch_offset: int, upper_bound: int, expected: list[AbortedTxn], is_complete: bool, index: TransactionIndex
) -> None:
    assert index.collect_aborted(fetch_offset, upper_bound) == (expected, is_complete)


@pytest.mark.parametrize(("offset", "kept"), [(51, 4), (50, 3), (36, 3), (35, 2), (11, 1), (10, 0), (0, 0)])  # TX-11
def test_truncation_drops_what_ended_there_or_later(
    offset: int, kept: int, index: TransactionIndex, path: Path
) -> None:
    index.truncate_to(offset)
    assert list(index) == FOUR[:kept]
    assert list(open_index(path)) == FOUR[:kept]
    index.append(FIFTH)
    assert list(index) == [*FOUR[:kept], FIFTH]


def test_a_reset_index_is_empty_and_takes_entries_again(index: TransactionIndex) -> None:  # TX-11
    index.reset()
    assert list(index) == []
    index.append(FOUR[0])
    assert list(index) == FOUR[:1]


def test_entries_go_on_after_the_file_was_renamed(index: TransactionIndex, tmp_path: Path) -> None:  # TX-13
    renamed = tmp_path / "renamed"
    index.rename_to(renamed)
    index.append(FIFTH)
    assert index.path == renamed
    assert list(open_index(renamed)) == [*FOUR, FIFTH]


def test_renaming_without_a_file_moves_the_name_only(path: Path, tmp_path: Path) -> None:
    index = open_index(path)
    index.rename_to(tmp_path / "renamed")
    assert list(tmp_path.iterdir()) == []
    index.append(FOUR[0])
    assert list(tmp_path.iterdir()) == [tmp_path / "renamed"]


def test_a_moved_directory_changes_the_path_and_nothing_else(index: TransactionIndex, tmp_path: Path) -> None:  # TX-14
    path = index.path
    index.moved_to(tmp_path / "elsewhere" / path.name)
    assert index.path == tmp_path / "elsewhere" / path.name
    assert path.exists()


def test_deleting_unlinks_and_says_whether_there_was_a_file(index: TransactionIndex, path: Path) -> None:  # TX-16
    assert index.delete() is True
    assert not path.exists()
    with pytest.raises(ClosedFile):
        index.append(FIFTH)
    assert open_index(path).delete() is False


def test_a_reader_for_tools_changes_and_creates_nothing(index: TransactionIndex, path: Path) -> None:
    index.close()
    path.chmod(0o444)
    reader = TransactionIndex.open_read_only(path, 0, OpenFiles())
    assert list(reader) == FOUR
    with pytest.raises(PermissionError):
        reader.append(FIFTH)
    with pytest.raises(PermissionError):
        reader.truncate_to(20)
    with pytest.raises(PermissionError):
        reader.reset()
    with pytest.raises(FileNotFoundError):
        TransactionIndex.open_read_only(path.with_name("missing"), 0, OpenFiles())
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("torn_bytes", range(1, ENTRY_BYTES))
def test_a_torn_entry_is_not_read_and_is_cut_before_the_next_one(
    torn_bytes: int, index: TransactionIndex, path: Path
) -> None:
    index.close()
    path.write_bytes(path.read_bytes() + pack_entry(FIFTH)[:torn_bytes])
    again = open_index(path)
    assert list(again) == FOUR
    with pytest.raises(CorruptIndex, match="multiple of 34"):
        again.sanity_check()
    again.append(FIFTH)
    again.sanity_check()
    assert path.stat().st_size == 5 * ENTRY_BYTES
    assert list(open_index(path)) == [*FOUR, FIFTH]


@pytest.mark.parametrize("room_bytes", [0, 1, ENTRY_BYTES - 1])
@pytest.mark.parametrize("entries", [0, 2])
def test_a_disk_that_is_full_leaves_no_half_entry(entries: int, room_bytes: int, path: Path) -> None:
    index = open_index(path)
    for aborted in FOUR[:entries]:
        index.append(aborted)
    with (
        no_file_grows_beyond(entries * ENTRY_BYTES + room_bytes),
        pytest.raises(OSError, match=r"too large|bytes written"),
    ):
        index.append(FOUR[entries])
    assert list(index) == FOUR[:entries]
    assert path.exists() == (entries > 0)
    assert not entries or path.stat().st_size == entries * ENTRY_BYTES
    index.append(FOUR[entries])
    assert list(open_index(path)) == FOUR[: entries + 1]


def test_an_unknown_version_is_damage(index: TransactionIndex, path: Path) -> None:
    overwrite(path, ENTRY_BYTES, b"\0\1")
    with pytest.raises(CorruptIndex, match="version 0 expected at 34, 1 found"):
        list(index)


@pytest.mark.parametrize(
    "damage",
    [
        (1, AbortedTxn(1, 5, 10, 13)),  # ends where the one before it ends
        (1, AbortedTxn(1, 16, 15, 13)),  # begins after its end
        (1, AbortedTxn(1, -1, 15, 13)),
        (1, AbortedTxn(1, 5, 15, 17)),  # stable after its own end
        (1, AbortedTxn(1, 5, 15, 10)),  # stable before what was
        (3, AbortedTxn(0, 0, 0, 0)),
    ],
)
def test_entries_that_cannot_be_are_damage(damage: tuple[int, AbortedTxn], index: TransactionIndex, path: Path) -> None:
    slot, aborted = damage
    overwrite(path, slot * ENTRY_BYTES, pack_entry(aborted))
    with pytest.raises(CorruptIndex):
        index.sanity_check()


def test_a_file_that_became_shorter_is_damage(index: TransactionIndex, path: Path) -> None:
    os.truncate(path, 50)
    with pytest.raises(CorruptIndex, match="bytes expected"):
        list(index)


def test_letting_go_of_the_file_costs_nothing_but_opening_it_again(path: Path) -> None:
    open_files = OpenFiles(limit=1)
    index, other = TransactionIndex(path, 0, open_files), TransactionIndex(path.with_name("other"), 0, open_files)
    for aborted in FOUR:
        index.append(aborted)
        other.append(aborted)
        assert open_files.open_count == 1
    assert list(index) == list(other) == FOUR


def test_what_was_synced_is_known(index: TransactionIndex) -> None:
    assert index.has_unsynced_writes
    writes = index.writes
    index.append(FIFTH)
    index.mark_synced(writes)
    assert index.has_unsynced_writes
    index.mark_synced(index.writes)
    assert not index.has_unsynced_writes


@st.composite
def aborted_lists(draw: st.DrawFn) -> list[AbortedTxn]:
    """Entries as aborts make them."""
    entries, marker, stable = [], 0, 0
    for producer_id in range(draw(st.integers(0, 20))):
        marker += draw(st.integers(1, 9))
        stable = draw(st.integers(stable, marker + 1))
        entries.append(AbortedTxn(producer_id, draw(st.integers(0, marker)), marker, stable))
    return entries


@settings(max_examples=60, deadline=None)
@given(entries=aborted_lists(), data=st.data())
def test_collecting_and_truncating_agree_with_a_list(
    entries: list[AbortedTxn], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    index = open_index(tmp_path_factory.mktemp("index") / "a.txnindex")
    index.replace(entries)
    fetch_offset, upper_bound = data.draw(st.integers(0, 120)), data.draw(st.integers(0, 130))
    wanted, is_complete = [], False
    for entry in entries:
        if entry.last_offset >= fetch_offset:
            if entry.first_offset < upper_bound:
                wanted.append(entry)
            if entry.last_stable_offset >= upper_bound:
                is_complete = True
                break
    assert index.collect_aborted(fetch_offset, upper_bound) == (wanted, is_complete)
    cut = data.draw(st.integers(0, 130))
    index.truncate_to(cut)
    kept = bisect_left([entry.last_offset for entry in entries], cut)
    assert list(index) == entries[:kept]
