"""Internal topics: created by the broker on first use, hidden unless asked for, read and never changed by clients."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from broker_thread import BrokerThread
from integration.command_line import CommandLine, succeeded
from unit.broker.data_dirs.test_loader import config_of, write_entries
from warmlog import Admin
from warmlog_broker import Broker
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_broker.topics.topics import InternalTopic
from warmlog_protocol import messages as m
from warmlog_protocol.errors import InvalidTopic, TopicAlreadyExists
from wire_client import WireClient, batch_of

STATE = InternalTopic("__state", 3, {"cleanup.policy": "compact", "segment.bytes": "1048576"})


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "data", max_partitions_per_topic=2) as thread:
        use(thread)
        yield thread


def use(broker: BrokerThread, state: InternalTopic = STATE) -> None:
    """What a part of the broker does that keeps its state in a topic."""
    broker.run(broker.broker.topics.internal(state))


def listed(client: WireClient, *, internal: bool = False) -> list[str]:
    response = cast("m.MetadataResponse", client.call(m.MetadataRequest(None, internal)))
    return [topic.name for topic in response.topics]


def deleted(client: WireClient, name: str) -> tuple[int, str]:
    (result,) = cast("m.DeleteTopicsResponse", client.call(m.DeleteTopicsRequest([name]))).topics
    return result.error_code, result.error_message


def test_an_internal_topic_is_created_on_first_use_and_survives_a_restart_as_it_was(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker:
        assert broker.in_loop(lambda it: it.topics.find("__state")) is None

        async def several_at_once() -> set[bytes]:
            topics = broker.broker.topics
            return {topic.topic_id for topic in await asyncio.gather(*(topics.internal(STATE) for _ in range(5)))}

        (topic_id,) = broker.run(several_at_once())
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        assert listed(client) == []
        assert listed(client, internal=True) == ["__state"]
        use(broker, STATE._replace(partitions=9, settings={"cleanup.policy": "delete"}))
        topic = broker.in_loop(lambda it: it.topics.get("__state"))
        assert (topic.topic_id, topic.is_internal, topic.count) == (topic_id, True, 3)
        assert topic.config.to_settings()["cleanup.policy"] == "compact"


def test_it_is_hidden_unless_it_is_asked_for(broker: BrokerThread, client: WireClient) -> None:
    client.create_topic("t")
    assert listed(client) == ["t"]
    assert sorted(listed(client, internal=True)) == ["__state", "t"]
    (named,) = cast("m.MetadataResponse", client.call(m.MetadataRequest(["__state"]))).topics
    assert (named.error_code, len(named.partitions)) == (0, 3)


async def test_the_admin_and_the_command_line_list_it_if_told_to(broker: BrokerThread) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic("t")
        assert [topic.name for topic in await admin.list_topics()] == ["t"]
        assert [topic.name for topic in await admin.list_topics(internal=True)] == ["__state", "t"]
    warmlog = CommandLine(broker.address)
    assert succeeded(warmlog("topic", "list")).split() == [b"t"]
    assert succeeded(warmlog("topic", "list", "--internal")).split() == [b"__state", b"t"]


def test_the_request_of_a_client_that_does_not_know_of_internal_topics_is_answered_as_before() -> None:
    class OldMetadataRequest(msgspec.Struct, array_like=True):
        topics: list[str] | None = None

    for names in (None, [], ["t"]):
        old = msgspec.msgpack.encode(OldMetadataRequest(names))
        assert msgspec.msgpack.decode(old, type=m.MetadataRequest) == m.MetadataRequest(names, include_internal=False)
        new = msgspec.msgpack.encode(m.MetadataRequest(names, include_internal=True))
        assert msgspec.msgpack.decode(new, type=OldMetadataRequest) == OldMetadataRequest(names)


def test_clients_read_it_and_do_not_change_it(broker: BrokerThread, client: WireClient) -> None:
    def append(it: Broker) -> None:
        it.topics.partition("__state", 1).append(batch_of([b"a"]), m.ACKS_LEADER, None, now_ms=1_700_000_000_000)

    broker.in_loop(append)
    with pytest.raises(InvalidTopic, match="'__state' is internal"):
        client.produce("__state", batch_of([b"x"]), partition=1)
    code, message = deleted(client, "__state")
    assert code == InvalidTopic.code
    assert "cannot be deleted" in message
    request = m.DeleteRecordsRequest([m.DeleteRecordsPartition("__state", 1, -1)])
    (kept,) = cast("m.DeleteRecordsResponse", client.call(request)).partitions
    assert kept.error_code == InvalidTopic.code
    fetched, payload = client.fetch("__state", 0, partition=1, max_wait_ms=5000, min_bytes=1)
    assert (fetched.error_code, fetched.high_watermark, fetched.log_start_offset) == (0, 1, 0)
    assert payload


def test_clients_cannot_take_a_reserved_name(broker: BrokerThread, client: WireClient) -> None:
    with pytest.raises(InvalidTopic, match="names that begin with '__' are reserved"):
        client.create_topic("__mine")
    with pytest.raises(TopicAlreadyExists):
        client.create_topic("__state")
    client.create_topic("_mine")
    assert "_mine" in listed(client)


def test_a_topic_that_a_client_of_0_1_0_created_under_such_a_name_stays_an_ordinary_one(tmp_path: Path) -> None:
    write_entries(tmp_path, TopicCreated("__state", bytes(range(16)), 1, {}), config=config_of(tmp_path))
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        assert listed(client) == ["__state"]
        assert client.produce("__state", batch_of([b"a"])).error_code == 0
        assert client.fetch("__state", 0)[1]
        with pytest.raises(InvalidTopic, match="created by a client, and the broker needs the name"):
            use(broker)
        assert deleted(client, "__state") == (0, "")
        use(broker)
        assert listed(client) == []
        assert listed(client, internal=True) == ["__state"]
