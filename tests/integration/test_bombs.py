"""Small batches that become huge: refused by the broker where it opens them, and by readers, who go on behind them."""

import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmlog
from broker_process import BrokerProcess
from faults.fuzzing.bodies import bomb, row_bomb
from faults.process_use import use_of
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import InvalidRecord
from wire_client import WireClient, batch_of

LIMIT_BYTES = 4 << 20
BOMBS = [(codec, is_rows) for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD) for is_rows in (False, True)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory: Path = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(directory, batch_max_decompressed_bytes=LIMIT_BYTES) as process:
        yield process


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"compression_type": "uncompressed"}])
def test_the_broker_refuses_bombs_where_it_opens_batches_and_its_memory_stays(
    broker: BrokerProcess, settings: dict[str, str]
) -> None:
    topic = next(iter(settings)).replace("_", "-")
    with WireClient(broker.address) as client:
        client.create_topic(topic, **settings)
        client.produce(topic, bomb_that_fits())
        before_bytes = use_of(broker.pid).memory_bytes
        for _ in range(3):
            for codec, is_rows in BOMBS:
                with pytest.raises(InvalidRecord, match=re.compile("limit", re.IGNORECASE)):
                    client.produce(topic, bomb(codec, is_rows=is_rows))
            with pytest.raises(InvalidRecord, match="100000 records: too many"):
                client.produce(topic, row_bomb())
        assert use_of(broker.pid).memory_bytes - before_bytes < 48 << 20
        client.produce(topic, bomb_that_fits())
    assert "a bug" not in broker.output


async def test_a_consumer_refuses_bombs_and_goes_on_behind_them(broker: BrokerProcess) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("plain")
        for codec, is_rows in BOMBS:
            client.produce("plain", bomb(codec, is_rows=is_rows))
            client.produce("plain", batch_of([b"honest"]))
    honest = refused = 0
    async with warmlog.Consumer(broker.address, topics=["plain"], max_decompressed_bytes=LIMIT_BYTES) as consumer:
        tracemalloc.start()
        async for batch in consumer.batches(until="latest"):
            try:
                honest += batch.values == [b"honest"]
            except warmlog.UnreadableBatch as error:
                refused += "limit" in str(error)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (honest, refused) == (len(BOMBS), len(BOMBS))
    assert peak_bytes < 40 << 20


def bomb_that_fits() -> bytes:
    """A batch with a key that becomes a hundred times as large."""
    return encode_batch([bytes(500_000)], keys=[b"k"], timestamps_ms=1_700_000_000_000, codec=Codec.ZSTD)
