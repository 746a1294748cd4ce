"""`python -m faults.client_memory ADDRESS TOPIC ROUNDS`: what is in use after each round of a client's work.

A round reads all of a topic, and makes, fills, reads and deletes one. All its clients are opened and closed in it.

Prints a line of JSON: for each round the records read, the bytes that the C library has given out and not got back
(mallinfo2, glibc 2.33) before Python's garbage collector has run and after, and then the blocks of Python's allocator.
What the system counts as the process's memory also has what both keep for later, which moves by some MiB.
"""

import asyncio
import ctypes
import gc
import json
import sys

from warmlog import Admin, Consumer, Producer

PREFETCH_BYTES = 4 * 1024 * 1024
PASSING_RECORDS = 200


class MallocInfo(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def bytes_in_use() -> int | None:
    """In the heap and in maps of their own; None where the C library does not tell."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    mallinfo2.restype = MallocInfo
    info = mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


async def read(address: str, topic: str) -> int:
    """How many records there are."""
    count = 0
    async with Consumer(address, topics=[topic], prefetch_bytes=PREFETCH_BYTES) as consumer:
        async for batch in consumer.batches(until="latest"):
            count += len(batch)
    return count


async def pass_through(address: str, topic: str) -> int:
    """Makes, fills, reads and deletes a topic; how many records it had."""
    async with Admin(address) as admin:
        await admin.create_topic(topic, partitions=2)
        async with Producer(address) as producer:
            await producer.send_many(topic, [b"%d" % number for number in range(PASSING_RECORDS)])
        count = await read(address, topic)
        await admin.delete_topic(topic)
    return count


async def main(address: str, topic: str, rounds: int) -> None:
    found = []
    gc.disable()
    for _ in range(rounds):
        count = await read(address, topic) + await pass_through(address, f"{topic}-passing")
        uncollected_bytes = bytes_in_use()
        gc.collect()
        found.append((count, uncollected_bytes, bytes_in_use(), sys.getallocatedblocks()))
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
