"""Responses leave with the next turn of the event loop."""

import asyncio

from warmlog_broker.network.session import Outbox


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


async def test_each_sender_is_flushed_once_in_the_next_turn_however_often_it_was_added() -> None:
    outbox = Outbox()
    senders = [FakeSender(outbox), FakeSender(outbox)]
    for sender in senders * 5:
        outbox.add(sender)
    assert [sender.flushes for sender in senders] == [0, 0]
    for _ in range(3):
        await asyncio.sleep(0)
        assert [sender.flushes for sender in senders] == [1, 1]


async def test_what_a_flush_adds_is_flushed_in_the_turn_after_it() -> None:
    outbox = Outbox()
    sender = FakeSender(outbox, again=2)
    outbox.add(sender)
    for flushes in (1, 2, 3, 3):
        await asyncio.sleep(0)
        assert sender.flushes == flushes
