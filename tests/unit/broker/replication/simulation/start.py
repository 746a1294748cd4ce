"""A start of a broker until it registers: its disks are judged, and the record says what they may lack."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unit.broker.replication.simulation.etcd import TOPIC, Item, Txn, node_key, record_key
from warmlog_broker.replication import membership
from warmlog_broker.replication.membership import Comparison, Mark, NodeMarks
from warmlog_broker.replication.record import Author, PartitionRecord, changed
from warmlog_protocol.errors import ApiError

if TYPE_CHECKING:
    from unit.broker.replication.simulation.broker import FakeBroker


class Start:
    """One start of `broker`."""

    def __init__(self, broker: "FakeBroker") -> None:
        self._broker = broker
        self._topic_id = ""
        self._why: str | None = None
        """What is wrong with the log."""
        self._is_lost = False

    def begin(self) -> None:
        self._broker.world.read(self._broker, self._compare)

    def _compare(self, items: Mapping[Any, Item], revision: int) -> None:
        """Judge the disks, and open the log."""
        broker = self._broker
        stored = items.get(node_key(broker.node))
        comparison = membership.compare(broker.marks, stored.value if stored is not None else Mark(), revision)
        assert comparison is not Comparison.STORE_HAS_GONE_BACK
        self._topic_id = items[TOPIC].value
        item = items.get(record_key(self._topic_id))
        if item is None or broker.node not in item.value.replicas:
            if item is not None:
                self._recover(item.value)
            self._mark()
            return
        high_watermark = broker.disk.stored_high_watermark if broker.disk is not None else 0
        self._recover(item.value)
        directory = broker.directories.get(self._topic_id)
        self._why = membership.lost(self._found(), directory, high_watermark)
        self._is_lost = self._why is not None or comparison is Comparison.DISKS_ARE_OLD
        if self._is_lost:
            broker.unregister(self._reread)
        else:
            self._change(item)

    def _recover(self, record: PartitionRecord) -> None:
        """Open the log, if there is one."""
        broker = self._broker
        if broker.disk is not None:
            broker.disk.recover(record.leader_epoch)
            broker.world.truth.changed(broker, broker.disk.end)

    def _found(self) -> membership.FoundLog | None:
        disk = self._broker.disk
        if disk is None or not disk.is_of(self._topic_id):
            return None
        return membership.FoundLog(disk.directory, disk.end, disk.is_known_damaged)

    def _change(self, item: Item) -> None:
        """Make the changes of a start to the record, one after the other. Then what is lost may be replaced."""
        broker, record = self._broker, item.value
        is_mine = record.by[:2] == (broker.node, broker.life) and record.leader == broker.node
        change = membership.start_change(record, broker.node, is_lost=self._is_lost, was_closed=broker.was_closed)
        if change is None or is_mine:
            if self._why is not None:
                broker.make_log(self._topic_id)
            self._mark()
            return
        after = changed(record, change, Author(broker.node, broker.life, 0))
        assert not isinstance(after, ApiError), after
        key = record_key(self._topic_id)
        broker.write(Txn({key: after}, changed={key: item.changed}), lambda _: self._reread())

    def _reread(self) -> None:
        def again(items: Mapping[Any, Item], _: int) -> None:
            item = items.get(record_key(self._topic_id))
            if item is None:
                self.begin()
            else:
                self._change(item)

        self._broker.world.read(self._broker, again)

    def _mark(self) -> None:
        """Write the mark of the next incarnation, and register."""
        broker = self._broker

        def read(items: Mapping[Any, Item], revision: int) -> None:
            key = node_key(broker.node)
            stored = items.get(key, Item(Mark(), 0, 0))
            mark = membership.next_incarnation(broker.marks, stored.value)
            broker.marks = NodeMarks(mark, broker.marks.confirmed, revision)

            def marked(item: Item) -> None:
                if item.value == mark:
                    broker.marked_at = item.changed
                    broker.marks = NodeMarks(mark, mark, revision)
                    broker.register(is_first=True)
                else:
                    self._mark()

            broker.write(Txn({key: mark}, changed={key: stored.changed}), marked)

        broker.world.read(broker, read)
