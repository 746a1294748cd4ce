"""What a Spark task does when something happens to a real broker while it reads; no session is needed for that."""

import time
from pathlib import Path

import pytest

from broker_process import BrokerProcess, port_to_keep
from spark.topics import Record, Topics
from warmlog.errors import OffsetOutOfRange
from warmlog.points import EARLIEST, LATEST, Point, PointKind
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import OffsetRange, PartitionOffsets
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.ranges.resolve import ReadBounds, resolve_ranges

SEGMENT_BYTES = 1024 * 1024


def fill_long_topic(broker: BrokerProcess, **configs: str) -> None:
    """40,000 records of 200 bytes, the value of each its offset, in segments of 1 MiB."""
    with Topics(broker.host, broker.port) as topics:
        topics.create("long", segment_bytes=str(SEGMENT_BYTES), **configs)
        for first in range(0, 40_000, 1_000):
            topics.fill("long", 0, [Record(None, b"%0200d" % value) for value in range(first, first + 1_000)])


def discover_one(broker: BrokerProcess) -> PartitionOffsets:
    with Discovery([broker.address]) as discovery:
        (state,) = discovery.states(discovery.topics(["long"]))
    return state


def whole_of(state: PartitionOffsets) -> OffsetRange:
    ((planned,), _) = resolve_ranges([state], ReadBounds(EARLIEST, LATEST))
    return planned


@pytest.mark.parametrize("at_batch", [0, 3])
def test_a_broker_killed_and_started_again_while_it_is_read_costs_no_record(tmp_path: Path, at_batch: int) -> None:
    with BrokerProcess(tmp_path) as broker:
        fill_long_topic(broker)
        planned = whole_of(discover_one(broker))
        values: list[int] = []
        reading = read_ranges([planned], Projection(("value",)), ReadSettings(fetch_bytes=500_000, in_flight=2))
        for number, batch in enumerate(reading):
            values += map(int, batch.column(0).to_pylist())
            if number == at_batch:
                broker.kill()
                broker.start()
        assert values == list(range(40_000))


def test_a_broker_that_comes_back_at_another_address_is_found_by_those_that_know_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        fill_long_topic(broker)
        planned = whole_of(discover_one(broker))
        later = port_to_keep()
        settings = ReadSettings(fetch_bytes=500_000, in_flight=2, bootstrap=(f"{broker.host}:{later}",))
        values: list[int] = []
        for number, batch in enumerate(read_ranges([planned], Projection(("value",)), settings)):
            values += map(int, batch.column(0).to_pylist())
            if number == 2:
                broker.kill()
                broker.port = later
                broker.start()
        assert planned.leader != broker.address
        assert values == list(range(40_000))


def test_what_retention_removed_is_an_error_that_names_the_range(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_retention_check_interval_ms=100) as broker:
        fill_long_topic(broker, retention_bytes=str(2 * SEGMENT_BYTES))
        state, deadline = discover_one(broker), time.monotonic() + 60
        caught: pytest.ExceptionInfo[OffsetOutOfRange] | None = None
        while caught is None and time.monotonic() < deadline:  # until retention has removed nothing meanwhile
            time.sleep(0.5)
            before = discover_one(broker)
            if before.earliest:
                with pytest.raises(OffsetOutOfRange) as found:
                    list(read_ranges([whole_of(before)._replace(start=0)], Projection(("value",))))
                state = discover_one(broker)
                caught = found if before.earliest == state.earliest else None
        assert caught is not None
        with pytest.raises(OffsetOutOfRange, match=f"long-0 offsets 0 to 40000: gone before {state.earliest}"):
            resolve_ranges([state], ReadBounds({("long", 0): Point(PointKind.OFFSET, 0)}, LATEST))
    assert f"long-0 offsets 0 to 40000, stopped at 0, broker {broker.address}: " in str(caught.value)
    assert f"offsets 0 to {state.earliest - 1} are gone, the log starts at {state.earliest} now" in str(caught.value)
