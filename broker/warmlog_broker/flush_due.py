"""Which partitions are to be flushed when, although nobody waits for it: what `flush.ms` asks for.

Partitions with the same delay fall due in the order in which they came, so each delay has a queue, and only the heads
of the queues are ever compared: with thousands of partitions a flush takes no longer to find out who is due.
"""

from collections import OrderedDict

from warmlog_broker.partition import Partition


class DueFlushes:
    """Partitions, each with the time at which it is due. Times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[Partition, float]] = {}
        """By the delay in ms; a queue is removed once it is empty."""
        self._delays_ms: dict[Partition, int] = {}

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._delays_ms

    def __bool__(self) -> bool:
        return bool(self._delays_ms)

    @property
    def next_s(self) -> float | None:
        """When the first one is due; None when there is none."""
        return min((next(iter(queue.values())) for queue in self._queues.values()), default=None)

    def add(self, partition: Partition, delay_ms: int, now_s: float) -> float:
        """`partition`, which must not be among them, is due after `delay_ms`; returns when that is."""
        due_s = now_s + delay_ms / 1000
        self._delays_ms[partition] = delay_ms
        queue = self._queues.get(delay_ms)
        if queue is None:
            queue = self._queues[delay_ms] = OrderedDict()
        queue[partition] = due_s
        return due_s

    def discard(self, partition: Partition) -> None:
        """`partition` is flushed now; harmless when it was not among them."""
        delay_ms = self._delays_ms.pop(partition, None)
        if delay_ms is None:
            return
        queue = self._queues[delay_ms]
        del queue[partition]
        if not queue:
            del self._queues[delay_ms]

    def take(self, now_s: float) -> list[Partition]:
        """Removes those whose time has come, and returns them."""
        taken = []
        for delay_ms, queue in list(self._queues.items()):
            while queue and next(iter(queue.values())) <= now_s:
                partition, _ = queue.popitem(last=False)
                del self._delays_ms[partition]
                taken.append(partition)
            if not queue:
                del self._queues[delay_ms]
        return taken

    def take_all(self) -> list[Partition]:
        """Removes all of them, and returns them."""
        taken = list(self._delays_ms)
        self._delays_ms.clear()
        self._queues.clear()
        return taken
