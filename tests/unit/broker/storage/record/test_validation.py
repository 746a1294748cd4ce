"""What is refused of a client's batch, and with which error."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from unit.broker.storage.log_room import START_MS, make_batch
from unit.protocol.batch.golden_batches import D_COMMIT, E_EMPTIED
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.log.validation import check_batch, check_fits_segment, check_timestamps, stamp
from warmlog_protocol import errors
from warmlog_protocol.batch import BatchHeader, read_batch, read_header, seal_batch

LIMIT = 1_000_000
BATCH = make_batch(b"a", b"b", b"c", producer=(7, 1, 10))


def changed(change: Callable[[BatchHeader], BatchHeader]) -> bytes:
    """BATCH with another header, sealed with the CRC that belongs to it."""
    return seal_batch(change(read_header(BATCH)), BATCH[61:])


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_a_good_batch_passes_from_any_buffer(buffer: Callable[[bytes], memoryview]) -> None:
    checked = check_batch(buffer(BATCH), LIMIT)
    assert checked.header == read_header(BATCH)
    assert checked.covered == BATCH[21:]
    assert checked.size_bytes == len(BATCH)


def test_rows_pass_as_well() -> None:
    assert check_batch(make_batch(b"a", rows=True), LIMIT).header.magic == 2


def test_the_offset_and_epoch_that_a_client_wrote_are_not_looked_at() -> None:
    batch = (12345).to_bytes(8, "big") + BATCH[8:12] + (99).to_bytes(4, "big") + BATCH[16:]
    assert check_batch(batch, LIMIT).covered == BATCH[21:]


def test_the_size_is_checked_first() -> None:
    assert check_batch(BATCH, len(BATCH))
    with pytest.raises(errors.MessageTooLarge, match=rf"{len(BATCH)} bytes, max.message.bytes allows {len(BATCH) - 1}"):
        check_batch(BATCH, len(BATCH) - 1)
    with pytest.raises(errors.MessageTooLarge):
        check_batch(bytes(1001), 1000)


@pytest.mark.parametrize("position", range(8, len(BATCH)))
def test_a_flipped_bit_is_noticed(position: int) -> None:
    if 12 <= position < 16:
        return  # the leader epoch, which the broker sets
    damaged = bytearray(BATCH)
    damaged[position] ^= 1 if position != 16 else 2  # magic is not covered by the CRC: 3 and 2 both exist
    with pytest.raises((errors.CorruptBatch, errors.InvalidRecord)):
        check_batch(damaged, LIMIT)


@pytest.mark.parametrize("size", [0, 1, 60, 61, len(BATCH) - 1])
def test_a_batch_that_is_cut_short_is_corrupt(size: int) -> None:
    with pytest.raises(errors.CorruptBatch):
        check_batch(BATCH[:size], LIMIT)


def test_two_batches_are_one_too_many() -> None:
    with pytest.raises(errors.InvalidRecord, match="more than one batch"):
        check_batch(BATCH + BATCH, LIMIT)
    with pytest.raises(errors.CorruptBatch, match="3 bytes follow a batch"):
        check_batch(BATCH + b"abc", LIMIT)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda h: h._replace(record_count=2), errors.InvalidRecord),
        (lambda h: h._replace(last_offset_delta=5), errors.InvalidRecord),
        (lambda h: h._replace(attributes=5), errors.CorruptBatch),
        (lambda h: h._replace(attributes=1 << 3), errors.InvalidTimestamp),
        (lambda h: h._replace(attributes=1 << 4), errors.InvalidTxnState),
        (lambda h: h._replace(attributes=3 << 4), errors.InvalidRecord),
        (lambda h: h._replace(attributes=1 << 6), errors.InvalidRecord),
        (lambda h: h._replace(attributes=1 << 9), errors.InvalidRecord),
        (lambda h: h._replace(base_sequence=-1), errors.InvalidRecord),
        (lambda h: h._replace(producer_epoch=-1), errors.InvalidRecord),
        (lambda h: h._replace(producer_id=-5), errors.InvalidRecord),
    ],
)
def test_what_clients_must_not_write_is_refused(
    change: Callable[[BatchHeader], BatchHeader], error: type[errors.ApiError]
) -> None:
    with pytest.raises(error):
        check_batch(changed(change), LIMIT)


def test_control_batches_and_emptied_ones_are_refused() -> None:
    for batch in (D_COMMIT, E_EMPTIED):
        with pytest.raises(errors.InvalidRecord):
            check_batch(batch, LIMIT)


def header_with_times(base_ms: int, max_ms: int) -> BatchHeader:
    return read_header(BATCH)._replace(base_timestamp_ms=base_ms, max_timestamp_ms=max_ms)


def test_timestamps_must_lie_within_the_window_of_the_topic() -> None:
    config = replace(LogConfig(), message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    now = START_MS
    for base_ms, max_ms in ((now - 1000, now + 500), (now, now), (-1, -1), (-1, now)):
        check_timestamps(header_with_times(base_ms, max_ms), config, now)
    with pytest.raises(
        errors.InvalidTimestamp, match=r"501 ms ahead of the broker's clock, message.timestamp.after.max.ms"
    ):
        check_timestamps(header_with_times(now, now + 501), config, now)
    with pytest.raises(
        errors.InvalidTimestamp, match=r"1001 ms behind the broker's clock, message.timestamp.before.max.ms"
    ):
        check_timestamps(header_with_times(now - 1001, now), config, now)


def test_by_default_the_past_is_welcome_and_the_future_is_not() -> None:
    check_timestamps(header_with_times(0, 0), LogConfig(), START_MS)
    with pytest.raises(errors.InvalidTimestamp):
        check_timestamps(header_with_times(0, START_MS + 3_600_001), LogConfig(), START_MS)


@pytest.mark.parametrize(("base_ms", "max_ms"), [(-2, 0), (-5, -5), (10, 9), (0, -1)])
def test_impossible_timestamps_are_refused(base_ms: int, max_ms: int) -> None:
    with pytest.raises(errors.InvalidTimestamp):
        check_timestamps(header_with_times(base_ms, max_ms), LogConfig(), START_MS)


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    config = replace(LogConfig(), segment_bytes=100)
    check_fits_segment(100, config)
    with pytest.raises(errors.RecordListTooLarge, match=r"101 bytes does not fit into segment.bytes=100"):
        check_fits_segment(101, config)


def test_a_stamped_batch_has_the_time_of_appending_and_a_right_crc() -> None:
    stamped = stamp(check_batch(BATCH, LIMIT), START_MS + 5)
    assert stamped.header.is_log_append_time
    batch = read_batch(BATCH[:17] + stamped.header.crc.to_bytes(4, "big") + stamped.covered)
    assert batch.timestamps_ms() == [START_MS + 5] * 3
    assert batch.values() == [b"a", b"b", b"c"]
