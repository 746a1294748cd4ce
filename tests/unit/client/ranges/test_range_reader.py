"""A task's reader against a broker that misbehaves: what it gets over, and what it says of the rest."""

import time
from dataclasses import replace

import pytest
from crc32c import crc32c
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
from waiting import wait_until
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings, Remedies
from warmlog.ranges.resolve import Loss
from warmlog_protocol.batch import (
    ControlType,
    EndTxnMarker,
    encode_batch,
    encode_end_txn_marker,
    read_batch,
    read_header,
    seal_batch,
)
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import AbortedTransaction, FetchPartition, IsolationLevel
from warmlog_transport.options import ConnectionOptions


def read_offsets(broker: ScriptedBroker, *bounds: tuple[int, int], settings: ReadSettings = QUICK) -> list[int]:
    """The offsets read, of which values and column must agree."""
    ranges = [OffsetRange("t", 2, start, end, broker.address, TOPIC_ID) for start, end in bounds]
    offsets: list[int] = []
    for batch in read_ranges(ranges, Projection(("offset", "value")), settings):
        offsets += batch.column("offset").to_pylist()
        assert [int(value) for value in batch.column("value").to_pylist()] == batch.column("offset").to_pylist()
    return offsets


def empty(_: FetchPartition, answer: Answer) -> Answer:
    partition, _payload = answer
    return type(partition)(*[getattr(partition, name) for name in partition.__struct_fields__[:9]], 0), b""


def failing(error: warmlog.ApiError) -> Step:
    return lambda *_: error


@pytest.mark.parametrize("bounds", [(0, 1_000), (0, 1), (999, 1_000), (333, 777), (10, 20)])
def test_a_range_is_read_from_its_first_offset_to_its_last(bounds: tuple[int, int]) -> None:
    with ScriptedBroker(log_of(1_000)) as broker:
        assert read_offsets(broker, bounds) == list(range(*bounds))
        assert {fetch.topic_id for fetch in broker.fetches} == {TOPIC_ID}
        assert len(broker.handshakes) == 1


def test_several_ranges_are_read_one_after_another() -> None:
    with ScriptedBroker(log_of(100)) as broker:
        assert read_offsets(broker, (50, 60), (0, 5), (7, 7)) == [*range(50, 60), *range(5)]


def test_no_ranges_give_no_records_and_ask_nobody() -> None:
    assert list(read_ranges([], Projection())) == []


def test_offsets_that_compaction_removed_are_passed_over() -> None:
    sparse = encode_batch([b"%099d" % n for n in (3, 7, 8)], timestamps_ms=0, base_offset=0, offset_deltas=[3, 7, 8])
    later = encode_batch([b"%099d" % n for n in (500, 501)], timestamps_ms=0, base_offset=500)
    with ScriptedBroker([sparse, later]) as broker:
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

    with ScriptedBroker(batches, [slow] * 10) as broker:
        assert read_offsets(broker, (0, 200)) == list(range(200))
        assert broker.most_unanswered >= 2  # several requests came with one read from the socket
        assert starts == sorted(starts)


@pytest.mark.parametrize("short", [1, 3, 9])
@pytest.mark.parametrize("failure", [honest, hang_up, empty, failing(warmlog.NotLeaderOrFollower("moved"))])
def test_short_batches_that_mislead_guesses_lose_and_repeat_nothing(short: int, failure: Step) -> None:
    log, base = [], 0
    for span in [*[10] * 30, short, *[10] * 30, *[short] * 40, *[10] * 30, short, short, *[10] * 20]:
        values = [b"%099d" % offset for offset in range(base, base + span)]
        log.append(encode_batch(values, timestamps_ms=0, base_offset=base))
        base += span
    with ScriptedBroker(log, [*[honest] * 12, failure, *[honest] * 3, failure]) as broker:
        assert read_offsets(broker, (0, base)) == list(range(base))


@pytest.mark.parametrize("failure", [hang_up, empty, failing(warmlog.NotLeaderOrFollower("moved"))])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_passing_failure_is_got_over_without_losing_or_repeating_a_record(failure: Step, after: int) -> None:
    script = [honest] * after + [failure] + [honest] * 3 + [failure, failure]
    with ScriptedBroker(log_of(1_000), script) as broker:
        assert read_offsets(broker, (5, 995)) == list(range(5, 995))
        assert (len(broker.handshakes) > 1) == (failure is hang_up)
        assert not broker.script


def test_a_leader_that_moves_is_found_and_reading_goes_on_there() -> None:
    log = log_of(1_000)
    with (
        ScriptedBroker(log, [honest, honest, *[failing(warmlog.NotLeaderOrFollower("moved"))] * 20]) as old,
        ScriptedBroker(log) as new,
    ):
        old.leader = new.address
        assert read_offsets(old, (5, 600), (600, 995)) == list(range(5, 995))
        assert len(new.handshakes) == 1, "the second range goes there at once"


def test_a_broker_that_is_gone_is_replaced_by_the_leader_that_the_named_brokers_know() -> None:
    log = log_of(1_000)
    with ScriptedBroker(log) as new:
        with ScriptedBroker([]) as gone:
            pass
        settings = replace(QUICK, bootstrap=(gone.address, new.address))
        assert read_offsets(gone, (5, 995), settings=settings) == list(range(5, 995))


def fail_reading(
    broker: ScriptedBroker, error: type[Exception], *bounds: tuple[int, int], settings: ReadSettings = QUICK
) -> str:
    with pytest.raises(error) as caught:
        read_offsets(broker, *(bounds or ((5, 995),)), settings=settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_broker_that_stays_away_is_given_up_after_the_deadline() -> None:
    with ScriptedBroker(log_of(1_000), [honest, *[hang_up] * 1_000]) as broker:
        started = time.monotonic()
        message = fail_reading(broker, warmlog.BrokerUnavailable)
        assert 0.1 < time.monotonic() - started < 20
    assert message.startswith("t-2 offsets 5 to 995, stopped at ")
    assert f", broker {broker.address}: connection to broker" in message
    assert "gave up after " in message
    assert message.endswith(" s; is the broker running?")


def test_a_broker_that_is_not_there_is_named() -> None:
    with ScriptedBroker([]) as gone:
        pass
    message = fail_reading(gone, warmlog.BrokerUnavailable)
    assert f"t-2 offsets 5 to 995, stopped at 5, broker {gone.address}: no connection to broker" in message


def test_records_that_retention_removed_while_spark_was_reading_are_an_error_with_the_range() -> None:
    with ScriptedBroker(log_of(1_000), [honest, *[failing(warmlog.OffsetOutOfRange("too old"))] * 9]) as broker:
        broker.log.log_start_offset = 700
        message = fail_reading(broker, warmlog.OffsetOutOfRange)
    assert message.startswith("t-2 offsets 5 to 995, stopped at ")
    assert "to 699 are gone, the log starts at 700 now: retention or DeleteRecords removed them" in message
    assert message.endswith("; make a new reader with a later start")
    assert len(broker.handshakes) == 1


def trimmed_to_700(wanted: FetchPartition, answer: Answer) -> Answer | warmlog.ApiError:
    return warmlog.OffsetOutOfRange("too old") if wanted.fetch_offset < 700 else answer


def test_what_is_gone_is_skipped_with_a_warning_where_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedBroker(log_of(1_000), [honest, honest, *[trimmed_to_700] * 1_000]) as broker:
        broker.log.log_start_offset = 700
        offsets = read_offsets(broker, (5, 995), settings=LENIENT)
    assert offsets[-295:] == list(range(700, 995))
    assert offsets[:-295] == list(range(5, offsets[-296] + 1))
    (warning,) = caplog.messages
    assert warning.startswith(f"t-2 offsets {offsets[-296] + 1} to 700: gone, the log starts at 700 now: retention")
    assert warning.endswith("; skipped")


def test_what_is_gone_is_told_whoever_wants_to_know_instead_of_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    losses: list[Loss] = []
    with ScriptedBroker(log_of(1_000), [trimmed_to_700] * 1_000) as broker:
        broker.log.log_start_offset = 700
        ranges = [OffsetRange("t", 2, start, start + 10, broker.address, TOPIC_ID) for start in (100, 695)]
        batches = list(read_ranges(ranges, Projection(("offset",)), LENIENT, on_loss=losses.append))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(700, 705))
    assert [(lost.topic, lost.partition, lost.start, lost.end) for lost in losses] == [
        ("t", 2, 100, 110),
        ("t", 2, 695, 700),
    ]
    assert not caplog.messages


def test_a_damaged_batch_that_retention_removes_before_its_end_is_found_is_skipped_with_all_that_is_gone() -> None:
    batches = log_of(1_000)
    batches[0] = batches[0][:-1] + bytes([batches[0][-1] ^ 1])
    with ScriptedBroker(batches, [honest, *[trimmed_to_700] * 1_000]) as broker:
        broker.log.log_start_offset = 700
        assert read_offsets(broker, (0, 995), settings=LENIENT) == list(range(700, 995))


def test_nothing_is_skipped_before_the_broker_has_said_where_the_log_starts() -> None:
    with ScriptedBroker(log_of(1_000), [honest, *[trimmed_to_700] * 1_000]) as broker:
        broker.log.log_start_offset = 700
        broker.list_offsets_errors = [warmlog.NotLeaderOrFollower("moved"), warmlog.StorageError("the disk failed")]
        offsets = read_offsets(broker, (5, 995), settings=LENIENT)
        assert offsets[-295:] == list(range(700, 995))
        broker.script = [trimmed_to_700] * 1_000
        broker.list_offsets_errors = [warmlog.InvalidRequest("not so")]
        with pytest.raises(warmlog.InvalidRequest, match=r"t-2 offsets 5 to 995, stopped at 5, broker .*: not so"):
            read_offsets(broker, (5, 995), settings=LENIENT)


@pytest.mark.parametrize(
    "error", [warmlog.UnknownTopicId("gone"), warmlog.OffsetOutOfRange("offset 9 is after the end, 3")]
)
def test_the_rest_of_a_range_of_no_topic_is_skipped(error: warmlog.ApiError, caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedBroker(log_of(1_000), [honest, failing(error)]) as broker:
        bounds = ((5, 995), (10, 20))
        offsets = read_offsets(broker, *bounds, settings=LENIENT)
    assert offsets == [*range(5, offsets[-11] + 1), *range(10, 20)]
    assert str(error) in caplog.messages[0]
    assert f"t-2 offsets {offsets[-11] + 1} to 995" in caplog.messages[0]


def test_the_error_says_what_its_reader_can_do() -> None:
    with ScriptedBroker(log_of(100), [failing(warmlog.UnknownTopicId("gone"))]) as broker:
        settings = replace(QUICK, remedies=Remedies(when_recreated="load again, or allow it"))
        with pytest.raises(warmlog.UnknownTopicId, match=r"planned: load again, or allow it$"):
            read_offsets(broker, (0, 100), settings=settings)


@pytest.mark.parametrize("limit", [1, 10, 77, 99, 100, 150])
def test_a_limit_ends_reading_after_so_many_records(limit: int) -> None:
    with ScriptedBroker(log_of(1_000)) as broker:
        offsets = read_offsets(broker, (0, 50), (500, 550), settings=replace(QUICK, limit=limit))
    assert offsets == [*range(50), *range(500, 550)][:limit]


def test_ranges_of_one_leader_share_a_connection() -> None:
    with ScriptedBroker(log_of(1_000)) as broker:
        assert read_offsets(broker, (0, 10), (500, 510), (90, 95)) == [*range(10), *range(500, 510), *range(90, 95)]
        assert len(broker.handshakes) == 1


def test_only_committed_records_are_read_where_the_others_are_not_wanted() -> None:
    def transaction(producer_id: int, base: int, control_type: ControlType) -> list[bytes]:
        values = [b"%099d" % offset for offset in range(base, base + 5)]
        records = encode_batch(
            values, timestamps_ms=0, base_offset=base, producer_id=producer_id, producer_epoch=0, is_transactional=True
        )
        marker = EndTxnMarker(control_type, 0)
        end = encode_end_txn_marker(
            marker, timestamp_ms=0, producer_id=producer_id, producer_epoch=0, base_offset=base + 5
        )
        return [records, end]

    def with_aborted(_: FetchPartition, answer: Answer) -> Answer:
        return replace_fields(answer[0], aborted_transactions=[AbortedTransaction(7, 0)]), answer[1]

    log = [*transaction(7, 0, ControlType.ABORT), *transaction(8, 6, ControlType.COMMIT)]
    committed = replace(QUICK, isolation=IsolationLevel.READ_COMMITTED)
    for bounds, expected in (((0, 12), [*range(6, 11)]), ((2, 8), [6, 7]), ((3, 5), [])):
        with ScriptedBroker(log, [with_aborted] * 9) as broker:
            assert read_offsets(broker, bounds, settings=committed) == expected
    with ScriptedBroker(log) as broker:
        assert read_offsets(broker, (0, 12)) == [*range(5), *range(6, 11)]


def test_an_offset_after_the_end_of_the_log_is_an_error() -> None:
    with ScriptedBroker(log_of(10), [failing(warmlog.OffsetOutOfRange("offset 5 is after the end, 3"))]) as broker:
        message = fail_reading(broker, warmlog.OffsetOutOfRange)
    assert "offsets 5 to 994 are not there any more: offset 5 is after the end, 3; make a new reader" in message


@pytest.mark.parametrize(
    "error", [warmlog.UnknownTopicId, warmlog.InconsistentTopicId, warmlog.UnknownTopicOrPartition]
)
def test_a_topic_that_was_deleted_or_made_anew_is_an_error_at_once(error: type[warmlog.ApiError]) -> None:
    with ScriptedBroker(log_of(1_000), [honest, *[failing(error("gone"))] * 9]) as broker:
        message = fail_reading(broker, error)
        assert len(broker.handshakes) == 1
    assert "gone; the topic was deleted or recreated after these ranges were planned: make a new reader" in message


def test_a_failed_disk_is_waited_for_and_then_named() -> None:
    """After the second attempt, whose requests have half a second, the time is over in the pause, not in a request."""
    backoff = ConnectionOptions(retry_backoff_ms=500, retry_backoff_max_ms=2_000, request_timeout_ms=2_000)
    with ScriptedBroker(log_of(1_000), [failing(warmlog.StorageError("the disk failed"))] * 1_000) as broker:
        settings = replace(QUICK, deadline_s=1.1, connection=backoff)
        message = fail_reading(broker, warmlog.StorageError, settings=settings)
        assert [fetch.fetch_offset for fetch in broker.fetches].count(5) > 1
    assert "the disk failed; gave up after" in message


def test_a_wrong_crc_is_an_error_with_partition_and_offset() -> None:
    batches = log_of(100)
    batches[6] = batches[6][:-1] + bytes([batches[6][-1] ^ 1])
    with ScriptedBroker(batches) as broker:
        message = fail_reading(broker, warmlog.CorruptBatch, (0, 100))
        assert read_offsets(broker, (0, 60), (70, 100)) == [*range(60), *range(70, 100)]
    assert message.startswith("t-2 offsets 0 to 100, stopped at 60, broker ")
    assert "batch at offset 60: CRC" in message
    assert message.endswith("; other offsets can be read: leave these out with start and end")


@pytest.mark.parametrize("damaged_base", [0, 95, 150, 10_000, 1 << 40])
def test_a_base_offset_which_no_crc_covers_is_believed_only_where_it_can_be(damaged_base: int) -> None:
    batches = log_of(300)
    damaged = damaged_base.to_bytes(8, "big") + batches[10][8:]

    def damage(_: FetchPartition, answer: Answer) -> Answer:
        fetched, payload = answer
        return fetched, payload.replace(batches[10], damaged)

    whole = replace(QUICK, fetch_bytes=1_000_000)
    with ScriptedBroker(batches, [damage]) as broker, pytest.raises(warmlog.CorruptBatch) as raised:
        read_offsets(broker, (0, 300), settings=whole)
    assert "stopped at 100, " in str(raised.value)
    assert "expected and the high watermark is 300" in str(raised.value)


def test_a_gap_is_damage_where_the_broker_says_that_there_is_none() -> None:
    batches = log_of(100)

    def without_one(_: FetchPartition, answer: Answer) -> Answer:
        fetched, payload = answer
        return replace_fields(fetched, has_dense_offsets=True, size_bytes=len(payload) - len(batches[4])), (
            payload.replace(batches[4], b"")
        )

    with (
        ScriptedBroker(batches, [without_one]) as broker,
        pytest.raises(warmlog.CorruptBatch, match="where 40 was expected"),
    ):
        read_offsets(broker, (0, 100), settings=replace(QUICK, fetch_bytes=1_000_000))


def lost(first: int, end: int) -> Step:
    """The broker has no batch for `[first, end)`, and says so."""

    def step(wanted: FetchPartition, answer: Answer) -> Answer:
        if not first <= wanted.fetch_offset < end:
            return answer
        code = int(warmlog.CorruptBatch.code)
        return replace_fields(answer[0], error_code=code, error_message="gone", size_bytes=0, next_offset=end), b""

    return step


def without(first: int, end: int) -> list[bytes]:
    return [batch for batch in log_of(300) if not first <= read_batch(batch).base_offset < end]


def test_lost_offsets_are_an_error_that_says_which() -> None:
    with ScriptedBroker(without(100, 150), [lost(100, 150)] * 1_000) as broker:
        with pytest.raises(warmlog.UnreadableBatch) as caught:
            read_offsets(broker, (0, 300))
        error = caught.value
        assert (error.topic, error.partition, error.base_offset, error.next_offset) == ("t", 2, 100, 150)
        message = str(error)
        assert message.startswith("t-2 offsets 0 to 300, stopped at 100, broker ")
        assert message.endswith(
            "t-2, offsets 100 to 149: gone; other offsets can be read: leave these out with start and end"
        )
        assert read_offsets(broker, (0, 100), (150, 300)) == [*range(100), *range(150, 300)]


def test_lost_offsets_are_skipped_and_told_once_where_that_is_allowed() -> None:
    losses: list[Loss] = []
    with ScriptedBroker(without(100, 150), [lost(100, 150)] * 1_000) as broker:
        bounds = [(0, 120), (120, 300)]
        ranges = [OffsetRange("t", 2, *each, broker.address, TOPIC_ID) for each in bounds]
        batches = list(read_ranges(ranges, Projection(("offset",)), LENIENT, on_loss=losses.append))
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == [*range(100), *range(150, 300)]
    assert [tuple(each) for each in losses] == [
        ("t", 2, 100, 120, "unreadable: gone"),
        ("t", 2, 120, 150, "unreadable: gone"),
    ]


def test_a_gap_that_the_broker_tells_of_is_passed_without_a_word() -> None:
    def gap(wanted: FetchPartition, answer: Answer) -> Answer:
        if wanted.fetch_offset < 250:
            return answer
        return replace_fields(answer[0], size_bytes=0, next_offset=300, high_watermark=300), b""

    losses: list[Loss] = []
    with ScriptedBroker(log_of(250), [gap] * 1_000) as broker:
        ranges = [OffsetRange("t", 2, *each, broker.address, TOPIC_ID) for each in ((0, 280), (260, 300))]
        batches = list(read_ranges(ranges, Projection(("offset",)), QUICK, on_loss=losses.append))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(250))
    assert not losses


def test_damage_that_the_reader_finds_ends_where_the_broker_or_the_batch_says() -> None:
    batches = log_of(300)
    batches[6] = batches[6][:-1] + bytes([batches[6][-1] ^ 1])

    def torn(wanted: FetchPartition, answer: Answer) -> Answer:
        """From 200 to 220 the file holds something else, which the broker sends along until it is asked for it."""
        if 200 <= wanted.fetch_offset < 220:
            return lost(200, 220)(wanted, answer)  # type: ignore[return-value]
        return answer[0], answer[1].replace(batches[20], b"\xff" * len(batches[20]))

    whole = replace(LENIENT, fetch_bytes=1_000_000)
    with ScriptedBroker(batches, [torn] * 1_000) as broker:
        assert read_offsets(broker, (0, 300), settings=whole) == [*range(60), *range(70, 200), *range(220, 300)]
        with pytest.raises(
            warmlog.UnreadableBatch, match=r"stopped at 60, .*t-2, offsets 60 to 69: batch at offset 60: CRC"
        ):
            read_offsets(broker, (0, 300))
        with pytest.raises(warmlog.UnreadableBatch, match=r"stopped at 200, .*t-2, offsets 200 to 219: gone"):
            read_offsets(broker, (70, 300), settings=replace(whole, fails_on_data_loss=True))


def test_damage_on_the_way_that_is_not_stored_is_not_skipped() -> None:
    batches = log_of(100)
    damaged = batches[6][:-1] + bytes([batches[6][-1] ^ 1])

    def once(_: FetchPartition, answer: Answer) -> Answer:
        return answer[0], answer[1].replace(batches[6], damaged)

    with ScriptedBroker(batches, [once]) as broker, pytest.raises(warmlog.CorruptBatch) as caught:
        read_offsets(broker, (0, 100), settings=replace(LENIENT, fetch_bytes=1_000_000))
    assert not isinstance(caught.value, warmlog.UnreadableBatch)


def test_checksums_are_not_looked_at_where_they_are_not_wanted() -> None:
    batches = [encode_batch([b"%099d" % n], timestamps_ms=0, base_offset=n) for n in range(3)]
    batches[1] = batches[1][:17] + b"\0\0\0\0" + batches[1][21:]
    with ScriptedBroker(batches) as broker:
        fail_reading(broker, warmlog.CorruptBatch, (0, 3))
        assert read_offsets(broker, (0, 3), settings=replace(QUICK, verifies_crc=False)) == [0, 1, 2]


@pytest.mark.parametrize("verifies_crc", [True, False])
def test_a_body_whose_lengths_are_wrong_never_becomes_an_arrow_batch(verifies_crc: bool) -> None:
    honest_batch = encode_batch([b"%099d" % n for n in range(10)], timestamps_ms=0)
    for position in (*range(61, 75), 80, 90):
        batch = bytearray(honest_batch)
        batch[position] ^= 0x41
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
        with ScriptedBroker([bytes(batch)]) as broker:
            try:
                settings = replace(QUICK, verifies_crc=verifies_crc)
                ranges = [OffsetRange("t", 2, 0, 10, broker.address, TOPIC_ID)]
                for made in read_ranges(ranges, Projection(("value", "offset", "timestamp")), settings):
                    made.validate(full=True)
            except (warmlog.CorruptBatch, warmlog.InvalidTimestamp):
                pass


def malformed(kind: str, base: int) -> bytes:
    """Ten records that cannot be read, under the right CRC."""
    values = [b"%099d" % offset for offset in range(base, base + 10)]
    batch = encode_batch(values, timestamps_ms=0, base_offset=base, headers=[[("name", b"value")]] * 10)
    header, body = read_header(batch), bytearray(batch[61:])
    if kind == "headers":
        body[-len(b"value") - 2] = 0xC1  # a byte that msgpack never uses
    elif kind == "rows":
        header, body = header._replace(magic=2), bytearray(b"nonsense")
    elif kind == "too large":
        header, body = header._replace(attributes=Codec.ZSTD), bytearray(b"\0" + (1 << 28).to_bytes(4, "little") * 4)
    else:
        body = bytearray(b"\0nonsense")
    return seal_batch(header, bytes(body))


@pytest.mark.parametrize("number", [0, 6, 9])
@pytest.mark.parametrize("kind", ["columns", "rows", "too large", "headers"])
def test_a_batch_that_is_malformed_under_a_right_crc_is_skipped_alone_where_that_is_allowed(
    kind: str, number: int
) -> None:
    batches, base = log_of(100), 10 * number
    batches[number] = malformed(kind, base)
    losses: list[Loss] = []
    with ScriptedBroker(batches) as broker:
        ranges = [OffsetRange("t", 2, 0, 100, broker.address, TOPIC_ID)]
        projection = Projection(("offset", "headers"))
        found = list(read_ranges(ranges, projection, LENIENT, on_loss=losses.append))
        with pytest.raises(warmlog.UnreadableBatch, match=f"t-2, offsets {base} to {base + 9}: batch at offset"):
            list(read_ranges(ranges, projection, QUICK))
    offsets = [offset for batch in found for offset in batch.column("offset").to_pylist()]
    assert offsets == [*range(base), *range(base + 10, 100)]
    assert [(each.start, each.end) for each in losses] == [(base, base + 10)]
    assert losses[0].reason.startswith("unreadable: batch at offset")


def test_a_reader_that_is_stopped_early_closes_its_connection() -> None:
    with ScriptedBroker(log_of(1_000, per_batch=200)) as broker:
        ranges = [OffsetRange("t", 2, 0, 1_000, broker.address, TOPIC_ID)] * 2
        reading = read_ranges(ranges, Projection(("value",)), QUICK)
        assert next(reading).num_rows == 1_000
        reading.close()  # type: ignore[attr-defined]
        wait_until(lambda: broker.connections == 0)


def test_ranges_of_batches_that_do_not_fit_a_fetch_are_read() -> None:
    log, base = [], 0
    for per_batch in (5_000, 3):
        values = [b"%099d" % (base + i) for i in range(per_batch)]
        log.append(encode_batch(values, timestamps_ms=0, base_offset=base))
        base += per_batch
    with ScriptedBroker(log) as broker:
        assert read_offsets(broker, (0, base)) == list(range(base))
