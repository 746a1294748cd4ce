"""Answers leave at the end of the event that brought them about."""

from warmlog_broker.runtime.outbox import Outbox


class FakeSender:
    def __init__(self, outbox: Outbox, again: int = 0) -> None:
        self.flushes = 0
        self._outbox = outbox
        self._again = again

    def flush(self) -> None:
        self.flushes += 1
        if self._again:
            self._again -= 1
            self._outbox.add(self)


def test_each_sender_is_flushed_once_however_often_it_was_added() -> None:
    outbox = Outbox()
    sender = FakeSender(outbox)
    for _ in range(5):
        outbox.add(sender)
    outbox.send()
    outbox.send()
    assert sender.flushes == 1


def test_what_a_flush_adds_is_flushed_too() -> None:
    outbox = Outbox()
    sender = FakeSender(outbox, again=2)
    outbox.add(sender)
    outbox.send()
    assert sender.flushes == 3
