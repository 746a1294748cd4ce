"""Leader epochs: which began where, and what is forgotten when."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.storage.directory.leader_epochs import UNKNOWN_EPOCH_END, LeaderEpochs


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start_offset in entries:
        epochs.assign(epoch, start_offset)
    return epochs


def test_the_latest_epoch_ends_at_the_log_end() -> None:
    assert epochs_of((2, 10)).end_offset_for(2, 11) == (2, 11)


def test_an_epoch_keeps_its_first_offset_and_loses_it_to_a_smaller_one() -> None:
    epochs = epochs_of((2, 9), (2, 10), (2, 11))
    assert epochs.entries == ((2, 9),)
    epochs.assign(3, 9)
    assert epochs.entries == ((3, 9),)


def test_nothing_is_known_of_an_empty_map_of_no_epoch_and_of_one_to_come() -> None:
    assert LeaderEpochs().end_offset_for(0, 5) == UNKNOWN_EPOCH_END
    assert epochs_of((2, 10)).end_offset_for(-1, 11) == UNKNOWN_EPOCH_END
    assert epochs_of((2, 10)).end_offset_for(3, 11) == UNKNOWN_EPOCH_END


def test_an_epoch_before_all_ends_where_the_first_begins() -> None:
    assert epochs_of((5, 11), (6, 12), (7, 13)).end_offset_for(4, 20) == (4, 11)


def test_a_later_epoch_with_a_smaller_offset_replaces_what_contradicts_it() -> None:
    epochs = epochs_of((5, 11), (6, 12), (7, 13))
    epochs.assign(7, 12)
    assert epochs.end_offset_for(5, 20) == (5, 12)
    assert epochs.end_offset_for(6, 20) == (5, 12)


@pytest.mark.parametrize(("epoch", "end"), [(0, (0, 13)), (1, (0, 13)), (2, (2, 17)), (3, (2, 17)), (4, (4, 20))])
def test_an_epoch_ends_where_the_next_known_one_begins(epoch: int, end: tuple[int, int]) -> None:
    assert epochs_of((0, 10), (2, 13), (4, 17)).end_offset_for(epoch, 20) == end


def test_an_epoch_without_records_is_forgotten() -> None:
    epochs = epochs_of((0, 0), (1, 0))
    assert epochs.latest_epoch == 1
    assert epochs.end_offset_for(0, 5) == (0, 0)


@pytest.mark.parametrize(
    ("end", "left"),
    [(-1, "all"), (12, "all"), (11, ((2, 6), (3, 8))), (9, ((2, 6), (3, 8))), (8, ((2, 6),)), (0, ())],
)
def test_truncating_the_end_drops_the_epochs_that_begin_there(end: int, left: object) -> None:
    epochs = epochs_of((2, 6), (3, 8), (4, 11))
    all_entries = epochs.entries
    epochs.truncate_from_end(end)
    assert epochs.entries == (all_entries if left == "all" else left)
    assert epochs.latest_epoch == max((entry.epoch for entry in epochs.entries), default=-1)


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (-1, ((2, 6), (3, 8), (4, 11))),
        (1, ((2, 6), (3, 8), (4, 11))),
        (6, ((2, 6), (3, 8), (4, 11))),
        (8, ((3, 8), (4, 11))),
        (9, ((3, 9), (4, 11))),
        (11, ((4, 11),)),
        (15, ((4, 15),)),
    ],
)
def test_truncating_the_start_keeps_the_epoch_that_holds_it(start: int, left: tuple[tuple[int, int], ...]) -> None:
    epochs = epochs_of((2, 6), (3, 8), (4, 11))
    epochs.truncate_from_start(start)
    assert epochs.entries == left


@pytest.mark.parametrize(
    ("offset", "epoch", "end"),
    [
        (10, 0, None),
        (11, 0, (0, 10)),
        (20, 0, (0, 10)),
        (10, 1, None),  # it was asked for the end, and nothing came in epoch 1
        (11, 1, (0, 10)),
        (15, 2, None),
        (25, 2, None),
        (26, 2, (2, 25)),
        (5, 3, (-1, -1)),
        (26, -1, None),
    ],
)
def test_a_reader_that_is_further_than_its_epoch_goes_is_in_another_log(
    offset: int, epoch: int, end: tuple[int, int] | None
) -> None:
    assert epochs_of((0, 0), (2, 10)).divergence(offset, epoch, 25) == end


def test_the_epoch_at_an_offset_is_the_last_that_began_at_or_before_it() -> None:
    epochs = epochs_of((0, 0), (1, 7), (2, 10))
    assert [epochs.epoch_at(offset) for offset in (0, 6, 7, 9, 10, 99)] == [0, 0, 1, 1, 2, 2]
    epochs.truncate_from_start(5)
    assert epochs.entries == ((0, 5), (1, 7), (2, 10))
    assert epochs.epoch_at(4) == -1


def test_changes_are_given_out_once() -> None:
    epochs = epochs_of((2, 6))
    assert epochs.take_changes() == ((2, 6),)
    assert epochs.take_changes() is None
    epochs.assign(2, 7)
    epochs.truncate_from_end(9)
    epochs.truncate_from_start(3)
    assert epochs.take_changes() is None
    epochs.clear()
    assert epochs.take_changes() == ()


def test_negative_epochs_and_offsets_are_bugs() -> None:
    for epoch, offset in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="negative"):
            LeaderEpochs().assign(epoch, offset)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=20))
def test_epochs_and_offsets_always_rise_together(assignments: list[tuple[int, int]]) -> None:
    epochs = epochs_of(*assignments)
    entries = epochs.entries
    assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(entries))
    if assignments:
        last_epoch, last_offset = assignments[-1]
        assert epochs.latest_epoch == last_epoch
        assert entries[-1].start_offset <= last_offset
