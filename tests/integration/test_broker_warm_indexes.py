"""A running broker keeps the ends of its indexes in memory, whoever evicts them."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from page_cache import evict, resident_pages
from warmlog_broker.maintenance import housekeeping
from wire_client import WireClient, batch_of

WAIT_S = 20.0
OFTEN = {housekeeping: {"WARM_INTERVAL_MS": 20}}


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to that"
        time.sleep(0.02)


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
