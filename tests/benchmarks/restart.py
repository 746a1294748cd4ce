"""How long a start after `kill -9` takes with a large active segment, idle and at full rate, warm and cold."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from broker_process import BrokerProcess
from page_cache import evict
from warmlog_protocol.batch import encode_batch
from wire_client import ConnectionEnded, WireClient

BATCH_RECORDS = 64
VALUE_BYTES = 1000
IN_FLIGHT = 5
IDLE_S = 6
"""By then an idle log has its restart point."""
FULL_RATE_S = 2.0


def restarts(data_dir: Path, log_bytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """The medians of starts of a broker whose only log has about `log_bytes` in its active segment."""
    batch = encode_batch([os.urandom(VALUE_BYTES) for _ in range(BATCH_RECORDS)], timestamps_ms=int(time.time() * 1000))
    with BrokerProcess(data_dir) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("bench")
        write(broker, batch, lambda written: written >= log_bytes)
        broker.terminate()
        size = f"{log_bytes >> 20} MiB in the active segment"
        ends: dict[str, Callable[[], None]] = {
            "clean": broker.terminate,  # type: ignore[dict-item]
            "kill -9, idle": lambda: kill_idle(broker),
            "kill -9, at full rate": lambda: kill_at_full_rate(broker, batch),
        }
        results = {}
        for name, end in ends.items():
            for is_cold in (False, True):
                took = [start_after(broker, end, is_cold=is_cold) for _ in range(rounds)]
                results[f"broker, {size}: {name}, {'cold' if is_cold else 'warm'}"] = {
                    "start_s": round(median(took), 3)
                }
    return results


def start_after(broker: BrokerProcess, end: Callable[[], object], *, is_cold: bool) -> float:
    """Seconds of the start after one that has ended in this way."""
    broker.start()
    end()
    if is_cold:
        os.sync()
        for path in broker.data_dir.rglob("*"):
            if path.is_file():
                evict(path)
    before_s = time.perf_counter()
    broker.start()
    took_s = time.perf_counter() - before_s
    broker.terminate()
    return took_s


def kill_idle(broker: BrokerProcess) -> None:
    time.sleep(IDLE_S)
    broker.kill()


def kill_at_full_rate(broker: BrokerProcess, batch: bytes) -> None:
    timer = threading.Timer(FULL_RATE_S, broker.kill)
    timer.start()
    try:
        write(broker, batch, lambda _: False)
    except (ConnectionEnded, OSError):
        timer.join()


def write(broker: BrokerProcess, batch: bytes, is_enough: Callable[[int], bool]) -> None:
    """Produces with a few requests in flight."""
    written = 0
    with WireClient(broker.address) as client:
        in_flight: list[int] = []
        while not is_enough(written):
            while len(in_flight) < IN_FLIGHT:
                in_flight.append(client.send_produce("bench", batch))
            client.produced(in_flight.pop(0))
            written += len(batch)
        for correlation_id in in_flight:
            client.produced(correlation_id)
