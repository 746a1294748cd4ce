"""Reading ranges that Ctrl-C interrupts while it waits: the next call goes on, and each record comes once, in order."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

import warmlog.arrow.reader
from unit.client.ranges.scripted_broker import QUICK, TOPIC_ID, Answer, ScriptedBroker, hang_up, honest, log_of
from unit.client.ranges.test_range_reader import trimmed_to_700
from waiting import wait_until
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_fetch import RangeFetch
from warmlog.ranges.range_reader import RangeReader, read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.messages import FetchPartition
from warmlog_transport.loop_thread import LoopCall, LoopThread

PATIENT = replace(QUICK, deadline_s=30.0)


class Interrupted:
    """A response that Ctrl-C comes before, or with."""

    def __init__(self, coming: LoopCall[Any], is_after: bool) -> None:
        self._coming = coming
        self._is_after = is_after
        self.cancel = coming.cancel

    def result(self, timeout_s: float | None = None) -> Any:
        if self._is_after:
            self._coming.result(timeout_s)
        raise KeyboardInterrupt


class Interruptions:
    """Ctrl-C ends the wait for a response with the number `at`: before it is asked for, or after it has come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 0
        self.is_after = False
        self.waits = 0
        begin = LoopThread.begin

        def interrupted(thread: LoopThread, work: Any) -> Any:
            coming = begin(thread, work)
            if getattr(work, "__name__", "") != RangeFetch.next.__name__:
                return coming
            self.waits += 1
            return Interrupted(coming, self.is_after) if self.waits == self.at else coming

        monkeypatch.setattr(LoopThread, "begin", interrupted)

    def each(self, most: int) -> Iterator[None]:
        """Every wait of a run, each run with one interruption more."""
        for self.is_after in (False, True):
            for self.at in range(1, most + 1):
                self.waits = 0
                yield


@pytest.fixture
def interruptions(monkeypatch: pytest.MonkeyPatch) -> Interruptions:
    return Interruptions(monkeypatch)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow batches of a few stored ones each, and stored batches in several Arrow batches."""
    monkeypatch.setattr(warmlog.arrow.reader, "MERGE_BYTES", 3_000)
    monkeypatch.setattr(warmlog.arrow.reader, "MAX_ROWS", 35)


def read_on(reading: RangeReader) -> list[int]:
    """The offsets, each Arrow batch asked for again after an interruption."""
    offsets: list[int] = []
    while True:
        try:
            batch = next(reading, None)
        except KeyboardInterrupt:
            continue
        if batch is None:
            return offsets
        offsets += batch.column("offset").to_pylist()


def read(ranges: list[OffsetRange], settings: ReadSettings = PATIENT) -> list[int]:
    with closing(read_ranges(ranges, Projection(("offset",)), settings)) as reading:
        return read_on(reading)


def ranges_of(broker: ScriptedBroker, *bounds: tuple[int, int], **options: Any) -> list[OffsetRange]:
    return [OffsetRange("t", 2, start, end, broker.address, TOPIC_ID, **options) for start, end in bounds]


@pytest.mark.parametrize("per_batch", [10, 50])
@pytest.mark.parametrize("failures", [[], [honest, hang_up, honest, hang_up]])
def test_an_interrupted_range_is_read_once(interruptions: Interruptions, per_batch: int, failures: list[Any]) -> None:
    with ScriptedBroker(log_of(300, per_batch=per_batch)) as broker:
        for _ in interruptions.each(12):
            broker.script = list(failures)
            assert read(ranges_of(broker, (5, 195), (200, 290))) == [*range(5, 195), *range(200, 290)]


def test_a_limit_counts_what_was_returned_before_an_interruption(interruptions: Interruptions) -> None:
    settings = replace(PATIENT, limit=130)
    with ScriptedBroker(log_of(300)) as broker:
        for _ in interruptions.each(8):
            assert read(ranges_of(broker, (0, 100), (150, 290)), settings) == [*range(100), *range(150, 180)]


def test_what_is_compacted_or_out_of_time_is_passed_over_after_interruptions(interruptions: Interruptions) -> None:
    log, kept = [], []
    for base in range(0, 300, 30):
        offsets = [base + delta for delta in (3, 4, 9, 17, 29)]
        kept += [offset for offset in offsets if 60 <= offset < 200]
        values = [b"%099d" % offset for offset in offsets]
        deltas = [offset - base for offset in offsets]
        log.append(encode_batch(values, timestamps_ms=offsets, base_offset=base, offset_deltas=deltas))
    with ScriptedBroker(log) as broker:
        for _ in interruptions.each(6):
            assert read(ranges_of(broker, (0, 299), from_ms=60, until_ms=200)) == kept


def test_what_is_gone_is_skipped_afterwards_too(interruptions: Interruptions, caplog: pytest.LogCaptureFixture) -> None:
    settings = replace(PATIENT, fails_on_data_loss=False)
    with ScriptedBroker(log_of(1_000), log_start_offset=700) as broker:
        for _ in interruptions.each(6):
            broker.script = [trimmed_to_700] * 1_000
            assert read(ranges_of(broker, (600, 800)), settings) == [*range(700, 800)]
    said = {message[:28] for message in caplog.messages if not message.startswith("reading was interrupted")}
    assert said == {"t-2 offsets 600 to 700: gone"}


def test_a_signal_ends_the_wait_for_a_broker_and_the_next_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    may_respond = threading.Event()

    def late(_: FetchPartition, answer: Answer) -> Answer:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        may_respond.wait(25)
        return answer

    with ScriptedBroker(log_of(1_000), [honest, honest, late]) as broker:
        reading = read_ranges(ranges_of(broker, (0, 1_000)), Projection(("offset",)), replace(PATIENT, in_flight=1))
        offsets: list[int] = []
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes while one of the batches is waited for
            for batch in reading:
                offsets += batch.column("offset").to_pylist()
        assert not may_respond.is_set()
        may_respond.set()
        assert offsets + read_on(reading) == list(range(1_000))
    (warning,) = caplog.messages
    assert warning.startswith("reading was interrupted and continues after the last batch that was returned")


def test_a_reader_that_is_left_alone_closes_its_connection_without_the_garbage_collector() -> None:
    with ScriptedBroker(log_of(300)) as broker:
        gc.disable()
        try:
            reading = read_ranges(ranges_of(broker, (0, 300)), Projection(("value",)), PATIENT)
            assert next(reading).num_rows
            del reading
            wait_until(lambda: broker.connections == 0)
        finally:
            gc.enable()


LEFT_OPEN = """
import sys
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings

planned = OffsetRange("t", 2, 0, 300, sys.argv[1], b"0123456789abcdef")
reading = read_ranges([planned] * 2, Projection(("offset",)), ReadSettings(fetch_bytes=1_000))
print(next(reading).num_rows)
"""


def test_a_program_ends_that_leaves_a_reader_open() -> None:
    with ScriptedBroker(log_of(300)) as broker:
        command = [sys.executable, "-c", LEFT_OPEN, broker.address]
        done = subprocess.run(command, timeout=180, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0
