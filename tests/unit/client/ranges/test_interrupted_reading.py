"""Reading ranges that is interrupted, by Ctrl-C for one, and continued: each record comes once, in order."""

import gc
import inspect
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

import warmlog.arrow.columns
import warmlog.arrow.reader
import warmlog.sockets.cluster
import warmlog.sockets.connection
from broker_in_thread import broker_in_thread
from fake_broker import FakeBroker as WholeBroker
from interrupter import interrupt_everywhere
from unit.client.ranges.fake_broker import TOPIC_ID, FakeBroker
from unit.client.ranges.test_range_reader import QUICK, hang_up, honest, log_of, trimmed_to_700
from warmlog.ranges import arrow_reader as arrow_reader_module
from warmlog.ranges import fetch_window, leader_connection, range_reader
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog_protocol.batch import encode_batch

pytestmark = [  # of sockets and generators that an interruption leaves to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODULES = [
    range_reader,
    leader_connection,
    fetch_window,
    warmlog.arrow.reader,
    warmlog.arrow.columns,
    warmlog.sockets.connection,
]
PATIENT = replace(QUICK, deadline_s=30.0)
Call = Callable[[Callable[[], Any]], Any]

_NEXT = range_reader._RangeBatches.__next__
_RETURN = max(number for number, line in enumerate(inspect.getsource(_NEXT).splitlines()) if "return batch" in line)


def is_return(frame: FrameType) -> bool:
    """Whether a batch is on its way from the reader, which has handed it out, to its caller, which has it not yet."""
    return frame.f_code is _NEXT.__code__ and frame.f_lineno == _NEXT.__code__.co_firstlineno + _RETURN


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow batches of a few stored ones each, and stored batches in several Arrow batches."""
    monkeypatch.setattr(warmlog.arrow.reader, "MERGE_BYTES", 3_000)
    monkeypatch.setattr(warmlog.arrow.reader, "MAX_ROWS", 35)


def read(call: Call, ranges: list[OffsetRange], settings: ReadSettings = PATIENT) -> list[int]:
    """The offsets of `ranges`, each Arrow batch asked for through `call`."""
    offsets: list[int] = []
    with closing(read_ranges(ranges, Projection(("offset", "value")), settings)) as reading:  # type: ignore[type-var]
        while (batch := call(lambda: next(reading, None))) is not None:
            offsets += batch.column("offset").to_pylist()
            assert [int(value) for value in batch.column("value").to_pylist()] == batch.column("offset").to_pylist()
    return offsets


def ranges_of(broker: FakeBroker, *bounds: tuple[int, int], **options: Any) -> list[OffsetRange]:
    return [OffsetRange("t", 2, start, end, broker.address, TOPIC_ID, **options) for start, end in bounds]


@pytest.mark.parametrize("per_batch", [10, 50])
@pytest.mark.parametrize("failures", [[], [honest, hang_up, honest, hang_up]])
def test_a_range_whose_reading_is_interrupted_anywhere_is_read_once(per_batch: int, failures: list[Any]) -> None:
    with FakeBroker(log_of(300, per_batch=per_batch)) as broker:

        def run(call: Call) -> None:
            broker.script = list(failures)
            assert read(call, ranges_of(broker, (5, 195), (200, 290))) == [*range(5, 195), *range(200, 290)]

        interrupt_everywhere(run, MODULES, 25, spares=is_return)


def test_a_limit_counts_what_was_handed_out_before_an_interruption() -> None:
    settings = replace(PATIENT, limit=130)
    with FakeBroker(log_of(300)) as broker:

        def run(call: Call) -> None:
            assert read(call, ranges_of(broker, (0, 100), (150, 290)), settings) == [*range(100), *range(150, 180)]

        interrupt_everywhere(run, MODULES, 25, spares=is_return)


def test_offsets_that_compaction_removed_and_records_out_of_time_are_passed_over_after_an_interruption() -> None:
    log, kept = [], []
    for base in range(0, 300, 30):
        offsets = [base + delta for delta in (3, 4, 9, 17, 29)]
        kept += [offset for offset in offsets if 60 <= offset < 200]
        values = [b"%099d" % offset for offset in offsets]
        deltas = [offset - base for offset in offsets]
        log.append(encode_batch(values, timestamps_ms=offsets, base_offset=base, offset_deltas=deltas))
    with FakeBroker(log) as broker:

        def run(call: Call) -> None:
            assert read(call, ranges_of(broker, (0, 299), from_ms=60, until_ms=200)) == kept

        interrupt_everywhere(run, MODULES, 25, spares=is_return)


def test_what_is_gone_is_skipped_after_an_interruption_too(caplog: pytest.LogCaptureFixture) -> None:
    settings = replace(PATIENT, fails_on_data_loss=False)
    with FakeBroker(log_of(1_000), log_start_offset=700) as broker:

        def run(call: Call) -> None:
            broker.script = [trimmed_to_700] * 1_000
            assert read(call, ranges_of(broker, (600, 800)), settings) == [*range(700, 800)]

        interrupt_everywhere(run, MODULES, 25, spares=is_return)
    assert {message[:28] for message in caplog.messages} == {"t-2 offsets 600 to 700: gone"}


def test_a_reader_that_is_left_alone_closes_its_connection_without_the_garbage_collector() -> None:
    with FakeBroker(log_of(300)) as broker:
        gc.disable()
        try:
            reading = read_ranges(ranges_of(broker, (0, 300)), Projection(("value",)), PATIENT)
            assert next(reading).num_rows
            del reading
            broker._threads[1].join(5)
            assert not broker._threads[1].is_alive()
        finally:
            gc.enable()


# --- arrow_reader ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[WholeBroker]:
    with broker_in_thread(t=2) as fake:
        for partition in range(2):
            for batch in log_of(200):
                fake.add_batch("t", partition, batch)
        yield fake


def test_a_record_batch_reader_that_is_interrupted_anywhere_hands_out_everything_once(broker: WholeBroker) -> None:
    settings = replace(PATIENT, max_wait_ms=10)

    def run(call: Call) -> None:
        reader = call(lambda: arrow_reader(broker.address, ["t"], columns=["offset"], settings=settings))
        offsets: list[int] = []
        while (batch := call(lambda: next(reader, None))) is not None:
            offsets += batch.column("offset").to_pylist()
        assert offsets == [*range(200)] * 2

    interrupt_everywhere(run, [*MODULES, arrow_reader_module], 25, spares=is_return)


def test_a_reader_that_goes_on_after_an_interruption_warns_of_what_a_read_all_had_got(
    broker: WholeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = arrow_reader(broker.address, ["t"], columns=["offset"], settings=replace(PATIENT, max_wait_ms=10))
    first = reader.read_next_batch().num_rows
    read_on = range_reader._RangeBatches._read_on
    calls = 0

    def interrupted(batches: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        read_on(batches)

    monkeypatch.setattr(range_reader._RangeBatches, "_read_on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reader.read_all()
    assert not caplog.messages
    rest = reader.read_all().num_rows
    (warning,) = caplog.messages
    assert warning.startswith("reading was interrupted and continues after the last batch that was returned")
    assert first + rest < 400
    assert rest > 0
