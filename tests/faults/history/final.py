"""Reading everything that is there when a run is over, by a client of a few lines."""

from collections.abc import Sequence

from faults.history.checking import Final, FinalLog, StateLog
from warmlog_protocol.batch import RecordBatch, iter_batches
from warmlog_protocol.errors import WarmlogError
from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MetadataRequest, MetadataResponse
from wire_client import WireClient


def read_all(
    address: str, log_topics: Sequence[str], state_topics: Sequence[str], partitions: int, topics: Sequence[str]
) -> Final:
    """All records of topics that keep every offset, and of those that are compacted. `topics`: all there are."""
    with WireClient(address) as client:
        logs = {
            (topic, partition): read_log(client, topic, partition)
            for topic in log_topics
            for partition in range(partitions)
        }
        states = {
            (topic, partition): _read_state(client, topic, partition)
            for topic in state_topics
            for partition in range(partitions)
        }
        offline = _offline(client)
    return Final(logs, states, topics, offline)


def _offline(client: WireClient) -> list[str]:
    """The partitions of all topics, of those too to which nobody writes, that have no leader."""
    response = client.call(MetadataRequest(None))
    assert isinstance(response, MetadataResponse)
    return [
        f"{topic.name}-{partition.partition}"
        for topic in response.topics
        for partition in topic.partitions
        if partition.leader_id < 0
    ]


def read_log(client: WireClient, topic: str, partition: int) -> FinalLog:
    """As far as there is something; what is removed meanwhile is not part of it."""
    log = FinalLog(0, [])
    try:
        log.first_offset = client.offset_at(topic, EARLIEST_TIMESTAMP, partition=partition)
        end_offset = client.offset_at(topic, LATEST_TIMESTAMP, partition=partition)
        while log.next_offset < end_offset:
            _read_some(client, topic, partition, log)
    except WarmlogError as error:
        log.gaps.append(f"offset {log.next_offset} cannot be read: {type(error).__name__}: {error}")
    return log


def _read_some(client: WireClient, topic: str, partition: int, log: FinalLog) -> None:
    for batch in _fetch(client, topic, partition, log.next_offset):
        skipped = log.next_offset - batch.base_offset
        if skipped < 0 or (skipped and log.values):
            log.gaps.append(f"a batch begins at {batch.base_offset} and not at {log.next_offset}")
        values = batch.values()
        assert None not in values
        log.values += [value for value in values[max(0, skipped) :] if value is not None]


def _read_state(client: WireClient, topic: str, partition: int) -> StateLog:
    state, offset = StateLog({}), 0
    try:
        offset = client.offset_at(topic, EARLIEST_TIMESTAMP, partition=partition)
        end_offset = client.offset_at(topic, LATEST_TIMESTAMP, partition=partition)
        while offset < end_offset:
            for batch in _fetch(client, topic, partition, offset):
                if batch.base_offset < offset:
                    state.gaps.append(f"a batch begins at {batch.base_offset}, before {offset}")
                offset = batch.next_offset
                for at, key, value in zip(batch.offsets(), batch.keys(), batch.values(), strict=True):
                    assert key is not None
                    assert value is not None
                    state.records[at] = (key, value)
    except WarmlogError as error:
        state.gaps.append(f"offset {offset} cannot be read: {type(error).__name__}: {error}")
    return state


def _fetch(client: WireClient, topic: str, partition: int, offset: int) -> list[RecordBatch]:
    """The batches from `offset` on, which is below the end: some there must be. WarmlogError where they are not."""
    _, payload = client.fetch(topic, offset, partition=partition)
    if not payload:
        raise WarmlogError("nothing comes, although the end is behind it")
    return list(iter_batches(payload))
