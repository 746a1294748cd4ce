"""A task's reader against a broker that misbehaves: what it gets over, and what it says of the rest."""

import time

import pytest

from unit.ranges.fake_broker import TOPIC_ID, Answer, FakeBroker, Step
from warmlog.arrow import KAFKA_COLUMNS
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    CorruptBatch,
    InconsistentTopicId,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from warmlog.options import ConnectionOptions
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_reader import ReadSettings, read_ranges
from warmlog_protocol.batch import encode_batch, read_batch, to_rows
from warmlog_protocol.compression import Codec
from warmlog_protocol.messages import FetchPartition

QUICK = ReadSettings(
    fetch_bytes=4_000,
    deadline_s=0.3,
    connection=ConnectionOptions(retry_backoff_ms=1, retry_backoff_max_ms=20, request_timeout_ms=2_000),
)


def log_of(count: int, *, per_batch: int = 10) -> list[bytes]:
    """`count` records whose value is their offset, in batches of all codecs, in columns and in rows."""
    batches = []
    for number, base in enumerate(range(0, count, per_batch)):
        values = [b"%099d" % offset for offset in range(base, min(base + per_batch, count))]
        sealed = encode_batch(values, timestamps_ms=base, base_offset=base, codec=Codec(number % 5))
        batches.append(to_rows(read_batch(sealed)) if number % 3 == 0 else sealed)
    return batches


def read_offsets(broker: FakeBroker, *bounds: tuple[int, int], settings: ReadSettings = QUICK) -> list[int]:
    """The offsets read, of which values and column must agree."""
    ranges = [OffsetRange("t", 2, start, end, broker.address, TOPIC_ID) for start, end in bounds]
    offsets: list[int] = []
    for batch in read_ranges(ranges, ("offset", "value"), settings):
        offsets += batch.column("offset").to_pylist()
        assert [int(value) for value in batch.column("value").to_pylist()] == batch.column("offset").to_pylist()
    return offsets


def honest(_: FetchPartition, answer: Answer) -> Answer:
    return answer


def hang_up(*_: object) -> None:
    return None


def empty(_: FetchPartition, answer: Answer) -> Answer:
    partition, _payload = answer
    return type(partition)(*[getattr(partition, name) for name in partition.__struct_fields__[:9]], 0), b""


def failing(error: ApiError) -> Step:
    return lambda *_: error


@pytest.mark.parametrize("bounds", [(0, 1_000), (0, 1), (999, 1_000), (333, 777), (10, 20)])
def test_a_range_is_read_from_its_first_offset_to_its_last(bounds: tuple[int, int]) -> None:
    with FakeBroker(log_of(1_000)) as broker:
        assert read_offsets(broker, bounds) == list(range(*bounds))
        assert {fetch.topic_id for fetch in broker.fetches} == {TOPIC_ID}
        assert broker.connections == 1


def test_several_ranges_are_read_one_after_another() -> None:
    with FakeBroker(log_of(100)) as broker:
        assert read_offsets(broker, (50, 60), (0, 5), (7, 7)) == [*range(50, 60), *range(5)]


def test_no_ranges_give_no_records_and_ask_nobody() -> None:
    assert list(read_ranges([], KAFKA_COLUMNS)) == []


def test_offsets_that_compaction_removed_are_passed_over() -> None:
    sparse = encode_batch([b"%099d" % n for n in (3, 7, 8)], timestamps_ms=0, base_offset=0, offset_deltas=[3, 7, 8])
    later = encode_batch([b"%099d" % n for n in (500, 501)], timestamps_ms=0, base_offset=500)
    with FakeBroker([sparse, later]) as broker:
        assert read_offsets(broker, (0, 502)) == [3, 7, 8, 500, 501]
        assert read_offsets(broker, (4, 501)) == [7, 8, 500]
        assert read_offsets(broker, (100, 400)) == []


def test_four_fetches_are_in_flight() -> None:
    batches = [encode_batch([b"%099d" % i], timestamps_ms=0, base_offset=i) for i in range(200)]
    starts: list[int] = []

    def slow(wanted: FetchPartition, answer: Answer) -> Answer:
        starts.append(wanted.fetch_offset)
        time.sleep(0.01)
        return answer

    with FakeBroker(batches, [slow] * 10) as broker:
        assert read_offsets(broker, (0, 200)) == list(range(200))
        assert broker.most_unanswered >= 2  # several requests came with one read from the socket
        assert starts == sorted(starts)


@pytest.mark.parametrize("failure", [hang_up, empty, failing(NotLeaderOrFollower("moved"))])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_passing_failure_is_got_over_without_losing_or_repeating_a_record(failure: Step, after: int) -> None:
    script = [honest] * after + [failure] + [honest] * 3 + [failure, failure]
    with FakeBroker(log_of(1_000), script) as broker:
        assert read_offsets(broker, (5, 995)) == list(range(5, 995))
        assert broker.connections > 1
        assert not broker.script


def fail_reading(broker: FakeBroker, error: type[Exception], *bounds: tuple[int, int]) -> str:
    with pytest.raises(error) as caught:
        read_offsets(broker, *(bounds or ((5, 995),)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_broker_that_stays_away_is_given_up_after_the_deadline() -> None:
    with FakeBroker(log_of(1_000), [honest, *[hang_up] * 1_000]) as broker:
        started = time.monotonic()
        message = fail_reading(broker, BrokerUnavailable)
        assert 0.1 < time.monotonic() - started < 5
    assert message.startswith("t-2 offsets 5 to 995, stopped at ")
    assert f", broker {broker.address}: connection to broker" in message
    assert message.endswith("gave up after 0 s; is the broker running?")


def test_a_broker_that_is_not_there_is_named() -> None:
    with FakeBroker([]) as gone:
        pass
    message = fail_reading(gone, BrokerUnavailable)
    assert f"t-2 offsets 5 to 995, stopped at 5, broker {gone.address}: no connection to broker" in message


def test_records_that_retention_removed_while_spark_was_reading_are_an_error_with_the_range() -> None:
    with FakeBroker(log_of(1_000), [honest, *[failing(OffsetOutOfRange("too old"))] * 9]) as broker:
        broker.log_start_offset = 700
        message = fail_reading(broker, OffsetOutOfRange)
    assert message.startswith("t-2 offsets 5 to 995, stopped at ")
    assert "to 699 are gone, the log starts at 700 now: retention or DeleteRecords removed them" in message
    assert "load() again, or start later with startingOffsets" in message
    assert broker.connections == 1


def test_an_offset_after_the_end_of_the_log_is_an_error() -> None:
    with FakeBroker(log_of(10), [failing(OffsetOutOfRange("offset 5 is after the end, 3"))]) as broker:
        message = fail_reading(broker, OffsetOutOfRange)
    assert message.endswith("offset 5 is after the end, 3")


@pytest.mark.parametrize("error", [UnknownTopicId, InconsistentTopicId, UnknownTopicOrPartition])
def test_a_topic_that_was_deleted_or_made_anew_is_an_error_at_once(error: type[ApiError]) -> None:
    with FakeBroker(log_of(1_000), [honest, *[failing(error("gone"))] * 9]) as broker:
        message = fail_reading(broker, error)
        assert broker.connections == 1
    assert "gone; the topic was deleted, or made anew, after this load() was planned: load() again" in message


def test_a_failed_disk_is_waited_for_and_then_named() -> None:
    with FakeBroker(log_of(1_000), [failing(StorageError("the disk failed"))] * 1_000) as broker:
        message = fail_reading(broker, StorageError)
        assert broker.connections > 1
    assert "the disk failed; gave up after" in message


def test_a_wrong_crc_is_an_error_with_partition_and_offset() -> None:
    batches = log_of(100)
    batches[6] = batches[6][:-1] + bytes([batches[6][-1] ^ 1])
    with FakeBroker(batches) as broker:
        message = fail_reading(broker, CorruptBatch, (0, 100))
        assert read_offsets(broker, (0, 60), (70, 100)) == [*range(60), *range(70, 100)]
    assert message.startswith("t-2 offsets 0 to 100, stopped at 60, broker ")
    assert "batch at offset 60: CRC" in message
    assert "other offsets can be read" in message


def test_a_reader_that_is_stopped_early_closes_its_connection() -> None:
    with FakeBroker(log_of(1_000, per_batch=200)) as broker:
        ranges = [OffsetRange("t", 2, 0, 1_000, broker.address, TOPIC_ID)] * 2
        reading = read_ranges(ranges, ("value",), QUICK)
        assert next(reading).num_rows == 1_000
        reading.close()  # type: ignore[attr-defined]
        broker._threads[1].join(5)
        assert not broker._threads[1].is_alive()


def test_ranges_of_batches_that_do_not_fit_a_fetch_are_read() -> None:
    log, base = [], 0
    for per_batch in (5_000, 3):
        values = [b"%099d" % (base + i) for i in range(per_batch)]
        log.append(encode_batch(values, timestamps_ms=0, base_offset=base))
        base += per_batch
    with FakeBroker(log) as broker:
        assert read_offsets(broker, (0, base)) == list(range(base))
