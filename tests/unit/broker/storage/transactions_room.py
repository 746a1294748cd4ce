"""Transactional producers for tests of a log, and the log that Kafka's own tests of transactions write."""

from unit.broker.storage.log_room import LogRoom, read_batches
from warmlog_broker.storage.index.transaction_index import AbortedTxn, TransactionIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_protocol.batch import ControlType


class Producer:
    """A transactional producer that counts its sequences."""

    def __init__(self, room: LogRoom, producer_id: int, epoch: int = 0) -> None:
        self.room = room
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = 0

    def send(self, count: int = 1) -> int:
        """Appends one batch to its transaction; returns the first offset."""
        values = [b"%d/%d" % (self.producer_id, self.sequence + n) for n in range(count)]
        producer = (self.producer_id, self.epoch, self.sequence)
        self.sequence += count
        return self.room.append_in_transaction(*values, producer=producer).first_offset

    def commit(self) -> int:
        return self.room.end_transaction(self.producer_id, commits=True).first_offset

    def abort(self) -> int:
        return self.room.end_transaction(self.producer_id, commits=False).first_offset


def plain(room: LogRoom, count: int) -> None:
    room.append(*[b"plain"] * count)


INTERLEAVED = [AbortedTxn(1, 0, 29, 8), AbortedTxn(2, 8, 74, 36)]


def interleaved(room: LogRoom) -> None:
    """90 offsets of four producers and plain batches, in which 1 and 2 abort (Kafka's test of the same)."""
    one, two, three, four = (Producer(room, producer_id) for producer_id in (1, 2, 3, 4))
    one.send(5)  # 0
    plain(room, 3)  # 5
    two.send(2)  # 8
    one.send(4)  # 10
    plain(room, 2)  # 14
    one.send(10)  # 16
    three.send(3)  # 26
    assert one.abort() == 29
    plain(room, 2)  # 30
    three.send(4)  # 32
    four.send(8)  # 36
    two.send(7)  # 44
    assert three.commit() == 51
    four.send(10)  # 52
    two.send(8)  # 62
    plain(room, 4)  # 70
    assert two.abort() == 74
    plain(room, 10)  # 75
    four.send(4)  # 85
    assert four.commit() == 89


def index_entries(room: LogRoom) -> list[AbortedTxn]:
    """Of all segments, as they lie on the disk."""
    return [
        aborted
        for name in room.files(".txnindex")
        for aborted in TransactionIndex.open_read_only(room.path(name), int(name[:20]), OpenFiles())
    ]


def aborted_at(room: LogRoom, offset: int, max_bytes: int = 1 << 20) -> list[AbortedTxn]:
    """What a read of committed data lists."""
    return list(room.log.reader.read(offset, max_bytes, bound="committed").aborted)


def read_committed(room: LogRoom, offset: int = 0, max_bytes: int = 1 << 20) -> list[bytes | None]:
    """The values that a reader of committed data delivers from `offset` on: what it does with each read's list."""
    values: list[bytes | None] = []
    log = room.log
    while batches := read_batches(log, offset, max_bytes=max_bytes, bound="committed"):
        coming = sorted(
            log.reader.read(offset, max_bytes, bound="committed").aborted, key=lambda aborted: -aborted.first_offset
        )
        aborting: set[int] = set()
        for batch in batches:
            header = batch.header
            while coming and coming[-1].first_offset <= header.last_offset:
                aborting.add(coming.pop().producer_id)
            if header.is_control:
                if batch.control_type is ControlType.ABORT:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                offsets = zip(batch.offsets(), batch.values(), strict=True)
                values += [value for at, value in offsets if at >= offset]
            offset = max(offset, batch.next_offset)
    return values
