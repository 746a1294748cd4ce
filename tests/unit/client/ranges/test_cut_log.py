"""A task's reader of a log that is cut: after its range was planned, or under it."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_fields

import warmlog
from unit.client.ranges.scripted_broker import (
    LENIENT,
    QUICK,
    TOPIC_ID,
    Answer,
    ScriptedBroker,
    Step,
    hang_up,
    honest,
    log_of,
)
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.ranges.resolve import Loss
from warmlog_protocol.messages import DivergingEpoch, FetchPartition


def log_of_epochs(*epochs: int) -> list[bytes]:
    """Ten records for each epoch, in one batch."""
    batches = log_of(10 * len(epochs))
    return [batch[:12] + epoch.to_bytes(4, "big") + batch[16:] for batch, epoch in zip(batches, epochs, strict=True)]


def leading(epoch: int) -> Step:
    return lambda _, answer: (replace_fields(answer[0], leader_epoch=epoch), answer[1])


def diverging(epoch: int, end_offset: int) -> Step:
    def step(_: FetchPartition, answer: Answer) -> Answer:
        return replace_fields(answer[0], size_bytes=0, diverging=DivergingEpoch(epoch, end_offset)), b""

    return step


def read_planned(
    broker: ScriptedBroker, start: int, end: int, settings: ReadSettings = QUICK, **more: int
) -> list[int]:
    planned = OffsetRange("t", 2, start, end, broker.address, TOPIC_ID, **more)
    batches = read_ranges([planned], Projection(("offset",)), replace(settings, fetch_bytes=1_100))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_what_was_written_after_the_plan_in_place_of_what_was_there_is_an_error() -> None:
    with ScriptedBroker(log_of_epochs(3, 3, 5, 5), [leading(5)] * 20) as broker:
        with pytest.raises(warmlog.LogTruncated) as raised:
            read_planned(broker, 0, 40, leader_epoch=3)
        assert (raised.value.topic, raised.value.partition) == ("t", 2)
        assert (raised.value.offset, raised.value.diverging_offset) == (40, 20)
        assert str(raised.value) == (
            f"t-2 offsets 0 to 40, stopped at 20, broker {broker.address}: the log was cut at 20 after these ranges "
            "were planned, and the records there are new; make a new reader"
        )
        assert read_planned(broker, 0, 20, leader_epoch=3) == list(range(20)), "what is below is what it was"
        assert read_planned(broker, 0, 40, leader_epoch=5) == list(range(40))
        assert read_planned(broker, 0, 40) == list(range(40)), "nothing is known of the plan's time"


def test_where_data_may_be_lost_what_was_planned_and_cut_is_skipped_and_told() -> None:
    losses: list[Loss] = []
    with ScriptedBroker(log_of_epochs(3, 3, 5, 5), [leading(5)] * 20) as broker:
        planned = OffsetRange("t", 2, 5, 40, broker.address, TOPIC_ID, leader_epoch=4)
        batches = list(read_ranges([planned, planned._replace(end=10)], Projection(), LENIENT, on_loss=losses.append))
    assert sum(batch.num_rows for batch in batches) == 15 + 5
    assert [loss[:4] for loss in losses] == [("t", 2, 20, 40)]
    assert "gone: the log was cut at 20 after these ranges were planned" in str(losses[0])


def test_a_leader_epoch_that_the_partition_has_not_had_is_damaged_and_says_nothing() -> None:
    with ScriptedBroker(log_of_epochs(3, 1 << 20, 3), [leading(3)] * 20) as broker:
        assert read_planned(broker, 0, 30, leader_epoch=3) == list(range(30))


def test_batches_after_a_gap_at_the_end_of_the_range_may_be_of_any_epoch() -> None:
    first, _, third = log_of_epochs(3, 3, 5)
    with ScriptedBroker([first, third], [leading(5)] * 20) as broker:
        assert read_planned(broker, 0, 20, leader_epoch=3) == list(range(10))


def test_the_broker_is_asked_whether_it_holds_what_was_read_before_a_lost_connection() -> None:
    with ScriptedBroker(log_of_epochs(3, 3, 4, 4, 4, 4), [honest, hang_up, honest, hang_up]) as broker:
        assert read_planned(broker, 5, 60, start_epoch=2) == list(range(5, 60))
        assert broker.fetches[0].last_fetched_epoch == 2
        restarted = [fetch for fetch in broker.fetches[1:] if fetch.last_fetched_epoch != -1]
        assert restarted
        assert all(fetch.last_fetched_epoch == (3 if fetch.fetch_offset <= 20 else 4) for fetch in restarted)


def test_a_reader_whose_log_was_cut_before_its_position_is_told_where() -> None:
    with ScriptedBroker(log_of_epochs(3, 3, 3), [honest, hang_up, *[diverging(3, 7)] * 9]) as broker:
        with pytest.raises(
            warmlog.LogTruncated, match=r"the log was cut at 7 after it had been read up to \d0, "
        ) as raised:
            read_planned(broker, 0, 30)
        assert raised.value.diverging_offset == 7
    with ScriptedBroker(log_of_epochs(3, 3, 3), [diverging(-1, -1)]) as broker:
        with pytest.raises(warmlog.LogTruncated, match="cut at an unknown offset") as raised:
            read_planned(broker, 5, 30, start_epoch=9)
        assert (raised.value.offset, raised.value.diverging_offset) == (5, None)
