"""A member of a group as a process: it says on stdout, as lines of JSON, what happens to it and what it reads.

`python -m integration.member_program ADDRESS OPTIONS`: OPTIONS is JSON with the options of Consumer and `handles_s`
(how long it sleeps with each batch), `blocks_s` (the same, with the event loop blocked), `commits` (each batch),
`never_revokes`. SIGTERM closes the consumer.
"""

import asyncio
import json
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import warmlog
from warmlog.errors import BrokerUnavailable

Partitions = list[tuple[str, int]]


def say(event: str, **details: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **details}), flush=True)


def sayer(event: str) -> Any:
    return lambda partitions: say(event, partitions=[f"{topic}-{partition}" for topic, partition in partitions])


async def read(client: warmlog.Consumer, options: dict[str, Any]) -> None:
    batches = client.batches()
    while True:
        try:
            batch = await anext(batches)
        except warmlog.MembershipLost as error:
            say("told", error=str(error))
            continue
        values = [value.decode() for value in batch.values if value is not None]
        say("batch", partition=f"{batch.topic}-{batch.partition}", next_offset=batch.next_offset, values=values)
        await asyncio.sleep(options["handles_s"])
        time.sleep(options["blocks_s"])  # noqa: ASYNC251 - that is the point
        if options["commits"]:
            try:
                await client.commit(batch)
                say("committed", partition=f"{batch.topic}-{batch.partition}", offset=batch.next_offset)
            except warmlog.MembershipLost as error:
                say("told", error=str(error))


async def never(_: Partitions) -> None:
    say("asked to give up")
    await asyncio.Event().wait()


async def started(address: str, options: dict[str, Any]) -> warmlog.Consumer:
    """A consumer that has begun, as soon as the broker can be reached: the test may have just killed it."""
    while True:
        with suppress(BrokerUnavailable):
            return await warmlog.Consumer(address, **options).start()


async def run(address: str, options: dict[str, Any]) -> None:
    own = {"handles_s": 0.0, "blocks_s": 0.0, "never_revokes": False, "commits": False}
    own |= {name: options.pop(name) for name in own if name in options}
    on_revoked = never if own["never_revokes"] else sayer("revoked")
    callbacks = {"on_assigned": sayer("assigned"), "on_revoked": on_revoked, "on_lost": sayer("lost")}
    client = await started(address, options | callbacks)
    say("joined")
    reading = asyncio.ensure_future(read(client, own))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reading.cancel)
    try:
        await reading
    except asyncio.CancelledError:
        say("closing")
    except warmlog.FencedInstanceId as error:
        say("fenced", error=str(error))
    finally:
        await client.close()
    say("closed")


def main() -> None:
    """Run until SIGTERM, or until another process has the instance id."""
    asyncio.run(run(sys.argv[1], json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
