"""Index files under a running broker: large ones that are lost are rebuilt, and their ends are kept in memory."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from page_cache import evict, resident_pages
from waiting import wait_until
from warmlog_broker.maintenance import housekeeping
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.messages import FetchPartition, FetchRequest
from wire_client import WireClient, batch_of

TOPIC = "t"
BATCH = batch_of([b"x" * 16_000] * 4)
BATCHES_A_SEGMENT = 32
SEGMENT_BYTES = BATCHES_A_SEGMENT * len(BATCH)
"""2 MiB."""
REBUILDING = "rebuilding the indexes from the log"
END_OFFSET = 3 * BATCHES_A_SEGMENT * 4


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """With a topic of three full segments, the last one active."""
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic(TOPIC, segment_bytes=str(SEGMENT_BYTES), segment_index_bytes="4096")
            for _ in range(3 * BATCHES_A_SEGMENT):
                client.produce(TOPIC, BATCH)
        yield broker


def index_files(broker: BrokerProcess) -> list[Path]:
    return sorted(
        path for path in (broker.data_dir / f"{TOPIC}-0").iterdir() if path.suffix in (".index", ".timeindex")
    )


def read_all(broker: BrokerProcess) -> None:
    """From every fifth offset a batch."""
    with WireClient(broker.address) as client:
        for offset in range(0, END_OFFSET, 5):
            _, payload = client.fetch(TOPIC, offset, max_bytes=1)
            (batch,) = iter_batches(payload)
            assert batch.base_offset == offset // 4 * 4


def test_indexes_that_are_emptied_under_the_broker_are_rebuilt(broker: BrokerProcess) -> None:
    read_all(broker)
    for path in index_files(broker):
        os.truncate(path, 0)
    read_all(broker)
    assert broker.output.count(REBUILDING) == 2, "the active segment has its entries in memory"
    broker.restart()
    read_all(broker)
    assert broker.output.count(REBUILDING) == 2


def test_fetches_that_need_the_same_index_wait_for_one_rebuild(broker: BrokerProcess) -> None:
    assert broker.terminate() == 0
    lost = index_files(broker)
    sizes = [path.stat().st_size for path in lost]
    for path in lost:
        path.unlink()
    broker.start()
    with ExitStack() as stack:
        clients = [stack.enter_context(WireClient(broker.address)) for _ in range(8)]
        wanted = [FetchPartition(TOPIC, 0, offset, 1) for offset in range(0, 128, 16)]
        ids = [client.send(FetchRequest(0, 1, 1, [each])) for client, each in zip(clients, wanted, strict=True)]
        for client, correlation_id, each in zip(clients, ids, wanted, strict=True):
            _, payload = client.fetched(correlation_id)
            assert [batch.base_offset for batch in iter_batches(payload)] == [each.fetch_offset]
    assert broker.output.count(REBUILDING) == 1
    read_all(broker)
    assert [path.stat().st_size for path in lost] == sizes
    assert broker.output.count(REBUILDING) == 3


OFTEN = {housekeeping: {"WARM_INTERVAL_MS": 20}}


def test_an_idle_topics_index_is_written_and_comes_back_into_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", constants=OFTEN, index_interval_bytes=0) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            for number in range(5):
                client.produce("t", batch_of([b"%d" % number]))
        index = tmp_path / "data" / "t-0" / f"{0:020d}.index"
        wait_until(lambda: index.read_bytes()[:32].count(0) < 32)
        evict(index)
        wait_until(lambda: 0 in resident_pages(index))
        assert broker.terminate() == 0
    assert index.stat().st_size == 4 * 8


def test_with_no_bytes_to_keep_nothing_is_read(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", constants=OFTEN, index_interval_bytes=0, index_warm_bytes=0) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            for number in range(5):
                client.produce("t", batch_of([b"%d" % number]))
        index = tmp_path / "data" / "t-0" / f"{0:020d}.index"
        evict(index)
        if resident_pages(index):
            pytest.skip("this file system keeps its pages")
        time.sleep(0.3)
        assert resident_pages(index) == set()
        assert broker.terminate() == 0
