"""Hostile frames harm nobody but their connection."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from broker_process import BrokerProcess
from faults.fuzzing import kafka
from faults.fuzzing.corpus import MEMBER_ID, PRODUCER_ID, Parts, corpus, openings, pack
from faults.fuzzing.mutation import MUTATIONS, Mutation
from faults.fuzzing.run import run
from warmlog_broker.kafka.translators import TRANSLATORS
from warmlog_protocol.errors import RemoteProtocolError
from warmlog_protocol.kafka.connection import KafkaConnection
from warmlog_protocol.kafka.schema import API
from warmlog_protocol.messages import APIS, InitProducerIdResponse, JoinJobResponse
from warmlog_protocol.wire.connection import ServerConnection
from wire_client import WireClient

MIB = 2**20


def read(connection: ServerConnection | KafkaConnection, data: bytes) -> int:
    """How many requests `data` are."""
    count, view = 0, memoryview(data)
    while view:
        room = connection.get_buffer()
        taken = min(len(room), len(view))
        room[:taken] = view[:taken]
        view = view[taken:]
        count += len(connection.received(taken))
    return count


def opened() -> ServerConnection:
    connection = ServerConnection(max_frame_bytes=MIB, buffer_bytes=65_536)
    connection.is_open = True
    return connection


def test_the_corpus_has_a_valid_request_of_every_api() -> None:
    frames = [pack(parts) for parts in corpus()]
    assert read(opened(), b"".join(frames)) == len(frames)
    assert {parts.fields[0] for parts in corpus()} == set(APIS)


def test_the_producers_of_the_corpus_are_those_that_a_new_broker_gives_out(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address) as client:
        initialise, join = (client.call(message) for message in openings())
    assert initialise == InitProducerIdResponse(PRODUCER_ID, 0)
    assert join == JoinJobResponse(False, MEMBER_ID, 0)


def kafka_connection() -> KafkaConnection:
    served = {API[name].key: API[name] for name in TRANSLATORS}
    return KafkaConnection(served, max_frame_bytes=MIB, buffer_bytes=65_536, max_request_bytes=65_536, max_items=10_000)


def test_the_corpus_of_kafkas_protocol_has_valid_requests_of_every_api_and_version() -> None:
    frames = kafka.corpus()
    assert read(kafka_connection(), b"".join(frames)) == len(frames)


def test_kafkas_protocol_meets_mutations_with_requests_or_its_own_error() -> None:
    luck = Random(1)
    frames = kafka.corpus()
    for _ in range(3000):
        with suppress(RemoteProtocolError):
            read(kafka_connection(), kafka.mutated(luck.choice(frames), luck))


@pytest.mark.parametrize("mutation", sorted(set(MUTATIONS), key=lambda mutation: mutation.__name__))
def test_the_protocol_meets_mutations_with_requests_or_its_own_error(mutation: Mutation) -> None:
    luck = Random(mutation.__name__)
    requests: list[Parts] = corpus()
    for _ in range(300):
        frame = mutation(luck.choice(requests), luck)
        try:
            read(opened(), frame)
        except RemoteProtocolError:
            continue


def test_a_broker_takes_no_harm_from_mutated_frames(tmp_path: Path) -> None:
    outcome = run(tmp_path / "data", seed=3, frames=3200)
    assert outcome.findings == [], str(outcome)
    assert outcome.tally.frames == 3200
    assert outcome.tally.answered > 1000
    assert outcome.tally.closed > 1000
    assert outcome.tally.logins > 50
    assert outcome.honest_records > 0
