"""Load on a broker that costs the one who makes it little: requests are made once, and sent again and again.

A producer without an id may send the same bytes any number of times. Each request has a correlation id of its own, and
is sent again only once its answer has come.
"""

import select
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

import msgspec

from benchmarks.measurement import VALUE_BYTES
from warmlog_protocol.messages import ACKS_ALL, APIS, ApiKey, ProducePartition, ProduceRequest
from warmlog_protocol.wire.frames import FrameBuffer, pack_frame
from wire_client import WireClient, batch_of

CONNECTIONS = 8
TIMEOUT_MS = 30_000
ANSWER_BYTES = 256 * 1024
_decode = msgspec.msgpack.decode


class Done(NamedTuple):
    """What a load came to: batches that were acknowledged in the time that counts, and how long each took."""

    batches: int
    seconds: float
    latencies_s: list[float]


def requests_of(topic: str, partitions: int, count: int, records: int) -> list[bytes]:
    """So many requests, of one batch each, spread over the partitions; the index is the correlation id less one."""
    batch = batch_of([b"%0*d" % (VALUE_BYTES, number) for number in range(records)])
    return [_request([(topic, number % partitions)], batch, number + 1) for number in range(count)]


def request_to_all(topic: str, partitions: int, records: int) -> bytes:
    """One request with a batch for each partition."""
    batch = batch_of([b"%0*d" % (VALUE_BYTES, number) for number in range(records)])
    return _request([(topic, number) for number in range(partitions)], batch, 1)


def _request(places: Sequence[tuple[str, int]], batch: bytes, correlation_id: int) -> bytes:
    wanted = [ProducePartition(topic, number, len(batch)) for topic, number in places]
    prefix = (ApiKey.PRODUCE, APIS[ApiKey.PRODUCE].max_version, correlation_id)
    payload = batch * len(places)
    return pack_frame(prefix, ProduceRequest(ACKS_ALL, TIMEOUT_MS, wanted), len(payload)) + payload


class Lane:
    """One connection, and the answers that come on it."""

    def __init__(self, address: str) -> None:
        self._client = WireClient(address)
        self.socket = self._client.socket
        self._frames = FrameBuffer(max_frame_bytes=1 << 24, buffer_bytes=ANSWER_BYTES)

    def fileno(self) -> int:
        """For select."""
        return self.socket.fileno()

    def receive(self) -> list[int]:
        """The correlation ids that were answered, at least one read's worth; every answer must be a success."""
        count = self.socket.recv_into(self._frames.get_buffer())
        assert count, "the broker has closed the connection"
        answered = []
        for frame in self._frames.frames_received(count):
            correlation_id, error_code, partitions, *_ = _decode(frame.header)
            assert not error_code, partitions
            assert not any(partition[2] for partition in partitions), partitions
            answered.append(correlation_id)
        return answered

    def close(self) -> None:
        self._client.close()


class Generator:
    """Several connections to one broker, served by this thread."""

    def __init__(self, address: str, connections: int = CONNECTIONS) -> None:
        self._lanes = [Lane(address) for _ in range(connections)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes:
            lane.close()

    def closed_loop(self, requests: Sequence[bytes], seconds: float) -> Done:
        """All `requests` are on their way all the time: each is sent again at once when it was answered.

        What counts begins when as many answers have come as there are requests, and lasts for at least two times that.
        """
        sent_s = [0.0] * (len(requests) + 1)
        latencies_s: list[float] = []
        for index, lane in enumerate(self._lanes):
            _send(lane, range(index + 1, len(requests) + 1, len(self._lanes)), requests, sent_s)
        begin_s = end_s = 0.0
        count, under_way = 0, len(requests)
        while under_way:
            for lane in self._ready(None):
                answered = lane.receive()
                now_s = time.perf_counter()
                count += len(answered)
                if end_s:
                    under_way -= len(answered)
                    continue
                if begin_s:
                    latencies_s += [now_s - sent_s[number] for number in answered]
                    if now_s - begin_s > seconds and count > 3 * len(requests):
                        end_s = now_s
                elif count >= len(requests):
                    begin_s = now_s
                _send(lane, answered, requests, sent_s)
        return Done(len(latencies_s), end_s - begin_s, latencies_s)

    def open_loop(self, requests: Sequence[bytes], seconds: float, per_s: float) -> Done:
        """Requests at a fixed rate, whatever the answers do; the time of each counts from when it was due."""
        due_s: dict[int, float] = {}
        latencies_s: list[float] = []
        start_s = time.perf_counter()
        count, number = int(seconds * per_s), 0
        while number < count or due_s:
            next_s = start_s + number / per_s
            while number < count and next_s <= time.perf_counter():
                place = number % len(requests)
                assert place + 1 not in due_s, "the broker is too slow for this rate"
                self._lanes[place % len(self._lanes)].socket.sendall(requests[place])
                due_s[place + 1] = next_s
                number += 1
                next_s = start_s + number / per_s
            wait_s = max(0.0, next_s - time.perf_counter()) if number < count else None
            for lane in self._ready(wait_s):
                answered = lane.receive()
                now_s = time.perf_counter()
                latencies_s += [now_s - due_s.pop(each) for each in answered]
        return Done(count, time.perf_counter() - start_s, latencies_s)

    def lockstep(self, request: bytes, seconds: float) -> Done:
        """One request at a time, three at least."""
        lane = self._lanes[0]
        latencies_s: list[float] = []
        start_s = time.perf_counter()
        while (before_s := time.perf_counter()) < start_s + seconds or len(latencies_s) < 3:
            lane.socket.sendall(request)
            while not lane.receive():
                pass
            latencies_s.append(time.perf_counter() - before_s)
        return Done(len(latencies_s), time.perf_counter() - start_s, latencies_s)

    def _ready(self, wait_s: float | None) -> list[Lane]:
        """The connections with answers, after `wait_s` at the latest. (epoll would wait for whole milliseconds.)"""
        return select.select(self._lanes, (), (), wait_s)[0]


def _send(lane: Lane, numbers: Sequence[int], requests: Sequence[bytes], sent_s: list[float]) -> None:
    now_s = time.perf_counter()
    for number in numbers:
        sent_s[number] = now_s
    lane.socket.sendall(b"".join([requests[number - 1] for number in numbers]))
