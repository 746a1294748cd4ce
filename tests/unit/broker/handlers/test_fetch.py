"""Fetch: what one partition's failure leaves of the others."""

import errno

import pytest

from unit.broker.conftest import NOW_MS
from unit.broker.handlers.conftest import MakeServices
from warmlog_broker.handlers.fetch import read_partitions
from warmlog_broker.network.request import RequestContext
from warmlog_broker.storage.log.local_log import LogBounds
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.messages import ACKS_LEADER, FetchPartition, FetchRequest, FetchResponse
from wire_client import batch_of


async def test_a_partition_that_fails_late_takes_nothing_of_the_next(
    make_services: MakeServices, context: RequestContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = make_services(2, write_caching="true")
    first, second = (services.topics.partition("t", number) for number in range(2))
    for partition, value in ((first, b"x" * 500), (second, b"y")):
        partition.append(batch_of([value]), ACKS_LEADER, None, now_ms=NOW_MS)
    real = vars(LogBounds)["last_stable_offset"].fget

    def fail(bounds: LogBounds) -> int:
        if bounds is first.log.bounds:
            raise OSError(errno.EIO, "broken")
        return real(bounds)

    monkeypatch.setattr(LogBounds, "last_stable_offset", property(fail))
    request = FetchRequest(0, 1, 1 << 20, [FetchPartition("t", number, 0, 1 << 20) for number in range(2)])
    result = read_partitions(services, context, request)
    response = result.response()
    message = response.message
    assert isinstance(message, FetchResponse)
    assert [each.error_code for each in message.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    size_bytes = second.log.local.segments.size_bytes
    assert [each.size_bytes for each in message.partitions] == [0, size_bytes]
    assert [[piece.size_bytes for piece in pieces] for pieces in response.slices] == [[], [size_bytes]]
    assert (result.size_bytes, result.has_error, list(result.wanted)) == (size_bytes, True, [second])
