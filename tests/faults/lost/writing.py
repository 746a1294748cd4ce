"""Topics of which each partition loses data in its own way: every damage, at each kind of segment."""

import time
from pathlib import Path
from typing import NamedTuple

from broker_process import BrokerProcess
from faults.lost.damaging import DAMAGES, NEEDING_COPIES, Damage, Victim, copy_directory
from waiting import wait_until
from warmlog_broker.storage.directory.data_dir import CLEANER_OFFSETS_NAME, RECOVERY_POINTS_NAME
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.segment.segment_files import LOG_KIND
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.messages import ACKS_ALL, ProducePartition, ProduceRequest, ProduceResponse
from wire_client import WireClient

SEGMENTS = 5
"""Of each partition; the last one is active."""
BATCHES = 14
RECORDS = 5
"""A batch. Three batches fit into a segment, and not four."""
END_OFFSET = BATCHES * RECORDS
LAST_BASE_OFFSET = 60
PLAIN, COMPACTED = "plain", "compacted"
SETTINGS = {
    PLAIN: {},
    COMPACTED: {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"},
}
TIMEOUT_S = 120.0


class Case(NamedTuple):
    """What happens to one partition."""

    damage: Damage
    segment: int

    def __str__(self) -> str:
        return f"{self.damage.__name__}, segment {self.segment}"


CASES = [Case(damage, segment) for damage in DAMAGES for segment in (0, SEGMENTS - 2, SEGMENTS - 1)]
"""By partition: the first segment, one between two others, and the active one."""


def value_of(offset: int) -> bytes:
    return b"%0100d" % offset


def start(directory: Path) -> BrokerProcess:
    """A broker that compacts and writes checkpoints soon."""
    return BrokerProcess(directory / "data", log_cleaner_backoff_ms=50, log_flush_offset_checkpoint_interval_ms=200)


def write(broker: BrokerProcess, topic: str, copies: Path, cases: list[Case] = CASES) -> None:
    """Creates and fills `topic`; a few of its keys come again and again. Returns once all of it is flushed, stored in
    the checkpoints, and compacted if the topic's name says so."""
    with WireClient(broker.address) as client:
        client.create_topic(
            topic,
            len(cases),
            segment_bytes="2000",
            index_interval_bytes="500",
            segment_index_bytes="4096",
            **SETTINGS[topic],
        )
        for batch in range(BATCHES):
            first = batch * RECORDS
            offsets = range(first, first + RECORDS)
            keys = [b"often %d" % (n % 4) if n % RECORDS > 2 else b"once %d" % n for n in offsets]
            sealed = encode_batch([value_of(n) for n in offsets], keys=keys, timestamps_ms=time.time_ns() // 1_000_000)
            _produce(client, topic, sealed, len(cases))
            for partition, case in enumerate(cases):
                if case.damage in NEEDING_COPIES:
                    copy_directory(broker.data_dir / f"{topic}-{partition}", copies / f"{partition}" / f"{batch:02d}")
    _wait_for(broker.data_dir / RECOVERY_POINTS_NAME, topic, END_OFFSET, len(cases))
    if topic == COMPACTED:
        _wait_for(broker.data_dir / CLEANER_OFFSETS_NAME, topic, LAST_BASE_OFFSET, len(cases))


def damage(broker: BrokerProcess, topic: str, copies: Path, cases: list[Case] = CASES) -> None:
    """Loses data of each partition. The broker must be down."""
    for partition, case in enumerate(cases):
        directory = broker.data_dir / f"{topic}-{partition}"
        base_offsets = sorted(int(path.name[:20]) for path in directory.glob(f"*{LOG_KIND}"))
        assert len(base_offsets) == SEGMENTS, f"{topic}-{partition} has the segments {base_offsets}"
        own_copies = copies / f"{partition}"
        found = sorted(own_copies.iterdir()) if own_copies.exists() else []
        case.damage(Victim(directory, base_offsets[case.segment], found))


def append_one(broker: BrokerProcess, topic: str, value: bytes, cases: list[Case] = CASES) -> list[int]:
    """Appends a record with `value` to each partition; returns their offsets."""
    sealed = encode_batch([value], keys=[value], timestamps_ms=time.time_ns() // 1_000_000)
    with WireClient(broker.address) as client:
        return _produce(client, topic, sealed, len(cases))


def _produce(client: WireClient, topic: str, sealed: bytes, partitions: int) -> list[int]:
    """Appends the batch to each partition; returns its offset in each."""
    wanted = [ProducePartition(topic, partition, len(sealed)) for partition in range(partitions)]
    response = client.call(ProduceRequest(ACKS_ALL, 10_000, wanted), sealed * partitions)
    assert isinstance(response, ProduceResponse)
    assert not any(produced.error_code for produced in response.partitions)
    return [produced.base_offset for produced in response.partitions]


def _wait_for(path: Path, topic: str, offset: int, partitions: int) -> None:
    """Until the checkpoint at `path` has `offset` for all partitions of `topic`."""
    wait_until(
        lambda: [found for key, found in read_offsets(path).items() if key.topic == topic] == [offset] * partitions,
        TIMEOUT_S,
    )


def start_again(broker: BrokerProcess) -> None:
    """Returns once the check in the background, if there is one, has come by: damage is told in the same way then."""
    broker.start()
    wait_until(lambda: broker.output.count("INFO checking ") == broker.output.count(" logs in the background") / 2)
