"""The broker in memory, in a thread, with one log and a script: for tests of the reader.

The script is a list of functions, one for each Fetch that comes in, that get the request and the honest answer and
return what is sent; None closes the connection. When the script is through, answers are honest.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from broker_in_thread import in_thread
from fake_broker import FakeBroker, FakePartition, topic_id
from warmlog.ranges.read_settings import ReadSettings
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch, read_batch, read_header, to_rows
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import ApiError
from warmlog_protocol.wire.connection import Request, ServerConnection
from warmlog_transport.options import ConnectionOptions

TOPIC_ID = topic_id("t")
Answer = tuple[m.FetchedPartition, bytes]
Step = Callable[[m.FetchPartition, Answer], Answer | ApiError | None]

QUICK = ReadSettings(
    fetch_bytes=4_000,
    deadline_s=0.3,
    connection=ConnectionOptions(retry_backoff_ms=1, retry_backoff_max_ms=20, request_timeout_ms=2_000),
)
LENIENT = replace(QUICK, fails_on_data_loss=False)


def log_of(count: int, *, per_batch: int = 10) -> list[bytes]:
    """`count` records whose value is their offset, in batches of all codecs, in columns and in rows."""
    batches = []
    for number, base in enumerate(range(0, count, per_batch)):
        values = [b"%099d" % offset for offset in range(base, min(base + per_batch, count))]
        sealed = encode_batch(values, timestamps_ms=base, base_offset=base, codec=Codec(number % 5))
        batches.append(to_rows(read_batch(sealed)) if number % 3 == 0 else sealed)
    return batches


def honest(_: m.FetchPartition, answer: Answer) -> Answer:
    return answer


def hang_up(*_: object) -> None:
    return None


class ScriptedBroker(FakeBroker):
    """Serves `batches`, sealed ones in the order of their offsets, as each partition of t."""

    def __init__(self, batches: Sequence[bytes], script: Sequence[Step] = (), *, log_start_offset: int = 0) -> None:
        super().__init__(t=3)
        self.log = FakePartition([(read_header(batch).base_offset, batch) for batch in batches], log_start_offset)
        self.log.next_offset = read_header(batches[-1]).next_offset if batches else log_start_offset
        self.topics["t"] = [self.log] * 3
        self.script = list(script)
        self.list_offsets_errors: list[ApiError] = []
        """What is answered instead of the log start, one each time."""
        self.fetches: list[m.FetchPartition] = []
        self.most_unanswered = 0
        self.leader = ""
        """Whom it names when it is asked for the leader, if not itself."""
        self._unanswered = 0
        self._running = ExitStack()

    def __enter__(self) -> Self:
        self._running.enter_context(in_thread(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def answer(self, wanted: m.FetchPartition) -> Answer:
        """What an honest broker sends: whole batches from the one with the offset in it, the last one cut off."""
        rest = b"".join(batch for _, batch in self.log.batches if read_header(batch).next_offset > wanted.fetch_offset)
        payload = rest[: max(wanted.max_bytes, read_header(rest).size_bytes if rest else 0)]
        return self._partition_of(wanted, len(payload)), payload

    def _partition_of(
        self, wanted: m.FetchPartition, size_bytes: int, error: ApiError | None = None
    ) -> m.FetchedPartition:
        code, message = (0, "") if error is None else (int(error.code), str(error))
        end, start = self.log.next_offset, -1 if code else self.log.log_start_offset
        return m.FetchedPartition(
            wanted.topic, wanted.partition, code, message, end, end, start, 0, TOPIC_ID, size_bytes
        )

    def _handle(self, connection: ServerConnection, writer: asyncio.StreamWriter, request: Request) -> None:
        if isinstance(request.message, m.FetchRequest):
            self._unanswered += 1
            self.most_unanswered = max(self.most_unanswered, self._unanswered)
        super()._handle(connection, writer, request)

    async def _fetch(self, connection: ServerConnection, writer: asyncio.StreamWriter, request: Request) -> None:
        assert isinstance(request.message, m.FetchRequest)
        (wanted,) = request.message.partitions
        self._unanswered -= 1
        self.fetches.append(wanted)
        honest = self.answer(wanted)
        answer = self.script.pop(0)(wanted, honest) if self.script else honest
        if answer is None:
            writer.transport.abort()
            return
        if isinstance(answer, ApiError):
            answer = self._partition_of(wanted, 0, answer), b""
        partition, payload = answer
        writer.write(connection.respond(request.correlation_id, m.FetchResponse([partition]), len(payload)) + payload)

    def _list_offset(self, asked: m.ListOffsetsPartition) -> m.ListedOffset:
        if not self.list_offsets_errors:
            return super()._list_offset(asked)
        error = self.list_offsets_errors.pop(0)
        return m.ListedOffset(asked.topic, asked.partition, error.code, str(error), -1, -1, -1)

    def _metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        metadata = super()._metadata(request)
        host, _, port = self.leader.rpartition(":")
        return m.MetadataResponse("cluster", 0, [m.BrokerMetadata(0, host, int(port or 0))], metadata.topics)
