"""A topic with write.caching, and what a power cut does to it, without a disk whose power can be cut."""

from collections.abc import Sequence

from broker_process import BrokerProcess
from warmlog_protocol.batch import iter_batches
from wire_client import WireClient, batch_of

NEVER_FLUSHED = {
    "write_caching": "true",
    "flush_ms": "86400000",
    "flush_messages": "1000000",
    "retention_ms": "-1",
}
"""Only a stop makes durable what such a topic takes."""


def create(broker: BrokerProcess, topic: str, kept: Sequence[bytes], **settings: str) -> None:
    """A topic of which only `kept` is on the disk, whatever is produced from now on."""
    with WireClient(broker.address) as client:
        client.create_topic(topic, **{**NEVER_FLUSHED, **settings})
    produce(broker, topic, kept)
    broker.restart()


def produce(broker: BrokerProcess, topic: str, values: Sequence[bytes]) -> None:
    """One batch for each value."""
    with WireClient(broker.address) as client:
        for value in values:
            client.produce(topic, batch_of([value]))


def lose_end(broker: BrokerProcess, topic: str, end_offset: int) -> None:
    """The broker is killed, and its first segment ends with the batch before `end_offset` when it starts again."""
    broker.kill()
    path = broker.data_dir / f"{topic}-0" / f"{0:020d}.log"
    content = path.read_bytes()
    batches = [batch for batch in iter_batches(content.rstrip(b"\0")) if batch.next_offset <= end_offset]
    with path.open("r+b") as file:
        file.truncate(sum(batch.size_bytes for batch in batches))
    broker.start()
