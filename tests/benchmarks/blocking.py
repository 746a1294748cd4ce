"""`warmlog.blocking`: what a call through the producer's thread costs a record, and how long one record takes."""

import time
from statistics import quantiles

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.produce import CALL_RECORDS, distinct_values
from warmlog.blocking import Admin, Producer


def send(bootstrap: str, topic: str, records: int) -> Run:
    """The plain loop: `send` for each record, then `flush`; until all are acknowledged."""
    values = distinct_values(min(records, CALL_RECORDS))
    with Producer(bootstrap) as producer:
        producer.send(topic, values[0]).result()
        start = time.perf_counter()
        for index in range(records):
            producer.send(topic, values[index % len(values)])
        producer.flush()
        seconds = time.perf_counter() - start
    assert _end_offset(bootstrap, topic) == records + 1
    return Run(records, seconds)


def result(bootstrap: str, topic: str, records: int) -> Run:
    """One record after another, each waited for: `send(…).result()`, with the time of each call."""
    value = b"x" * VALUE_BYTES
    latencies_ms: list[float] = []
    with Producer(bootstrap) as producer:
        producer.send(topic, value).result()
        start = before = time.perf_counter()
        for _ in range(records):
            producer.send(topic, value).result()
            now = time.perf_counter()
            latencies_ms.append((now - before) * 1000)
            before = now
    assert _end_offset(bootstrap, topic) == records + 1
    cuts = quantiles(latencies_ms, n=100)
    return Run(records, before - start, {"p50_ms": cuts[49], "p99_ms": cuts[98]})


def _end_offset(bootstrap: str, topic: str) -> int:
    with Admin(bootstrap) as admin:
        return int(admin.list_offsets(topic, "latest")[0].offset)
