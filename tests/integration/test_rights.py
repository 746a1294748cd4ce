"""Rights over real sockets: every API with and without each right that it needs, and what clients are told."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from msgspec import Struct, structs

import warmlog
from broker_thread import BrokerThread
from warmlog_broker.gate.table import RIGHTS
from warmlog_broker.handlers import FAMILIES
from warmlog_broker.network.request import ANONYMOUS_PRINCIPAL
from warmlog_protocol import messages as m
from wire_client import WireClient, batch_of

T, SECRET, GROUP = "t", "secret", "g"
BATCH = batch_of([b"value"])
ALL_RULES = tuple(
    m.AclBinding(ANONYMOUS_PRINCIPAL, m.Operation.ALL, kind, m.CLUSTER_NAME if kind is m.ResourceType.CLUSTER else "*")
    for kind in m.ResourceType
)
REFUSED = {
    warmlog.ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    warmlog.ErrorCode.GROUP_AUTHORIZATION_FAILED,
    warmlog.ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    warmlog.ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Right(NamedTuple):
    operation: m.Operation
    kind: m.ResourceType
    name: str

    def __repr__(self) -> str:
        return f"{self.operation.name}-{self.kind.name}"


def on_topic(operation: m.Operation, name: str = T) -> Right:
    return Right(operation, m.ResourceType.TOPIC, name)


def on_group(operation: m.Operation) -> Right:
    return Right(operation, m.ResourceType.GROUP, GROUP)


def on_cluster(operation: m.Operation) -> Right:
    return Right(operation, m.ResourceType.CLUSTER, m.CLUSTER_NAME)


class Case(NamedTuple):
    """A request and the rights that it needs, all of them."""

    request: m.Message
    needs: tuple[Right, ...]
    payload: bytes = b""


def fetch_of(*names: str, max_wait_ms: int = 0, **fields: Any) -> m.FetchRequest:
    return m.FetchRequest(max_wait_ms, 1, 1 << 20, [m.FetchPartition(name, 0, 0, 1 << 20) for name in names], **fields)


def commit_of(*names: str) -> m.OffsetCommitRequest:
    return m.OffsetCommitRequest(GROUP, [m.OffsetCommitPartition(b"", name, 0, 1) for name in names])


def heartbeat_of(*names: str, epoch: int = m.JOINING) -> m.GroupHeartbeatRequest:
    return m.GroupHeartbeatRequest(
        GROUP, "member-1", epoch, topics=list(names), pattern="", assignor="", owned=[], client_id="c"
    )


def produce_of(*names: str, acks: int = m.ACKS_ALL) -> Case:
    parts = [m.ProducePartition(name, 0, len(BATCH)) for name in names]
    return Case(m.ProduceRequest(acks, 10_000, parts), (on_topic(m.Operation.WRITE),), BATCH * len(names))


WRITE_ID = Right(m.Operation.WRITE, m.ResourceType.TRANSACTIONAL_ID, "tx")
Op = m.Operation
MEMBER = m.JobMember(1, 0)
CASES = [
    Case(m.MetadataRequest([T]), (on_topic(Op.DESCRIBE),)),
    Case(m.CreateTopicsRequest([m.NewTopic(T)]), (on_topic(Op.CREATE),)),
    Case(m.CreateTopicsRequest([m.NewTopic(T)]), (on_cluster(Op.CREATE),)),
    Case(m.DeleteTopicsRequest(["gone"]), (on_topic(Op.DELETE, "gone"),)),
    Case(m.AlterTopicsRequest([m.AlteredTopic(T)], validate_only=True), (on_topic(Op.ALTER_CONFIGS),)),
    Case(m.CreatePartitionsRequest([m.NewPartitions(T, 1)], validate_only=True), (on_topic(Op.ALTER),)),
    Case(m.DescribeConfigsRequest([T]), (on_topic(Op.DESCRIBE_CONFIGS),)),
    Case(m.DescribeConfigsRequest([T]), (on_topic(Op.WRITE),)),
    Case(m.DescribeConfigsRequest([]), (on_cluster(Op.DESCRIBE_CONFIGS),)),
    Case(m.AlterReplicaLogDirsRequest([m.ReplicaLogDir(T, 0, "/nowhere")]), (on_cluster(Op.ALTER),)),
    Case(m.DescribeLogDirsRequest(), (on_cluster(Op.DESCRIBE),)),
    Case(m.AlterPartitionReassignmentsRequest([]), (on_cluster(Op.ALTER),)),
    Case(m.ListPartitionReassignmentsRequest(), (on_cluster(Op.DESCRIBE),)),
    Case(m.ElectLeadersRequest(), (on_cluster(Op.ALTER),)),
    Case(m.InitProducerIdRequest(), (on_cluster(Op.IDEMPOTENT_WRITE),)),
    Case(m.InitProducerIdRequest(), (on_topic(Op.WRITE, "any"),)),
    Case(m.InitProducerIdRequest("tx"), (WRITE_ID,)),
    produce_of(T),
    Case(fetch_of(T), (on_topic(Op.READ),)),
    Case(fetch_of(T, replica_id=2), (on_topic(Op.READ), on_cluster(Op.CLUSTER_ACTION))),
    Case(
        m.FetchRequest(0, 1, 1, [m.FetchPartition(T, 0, 0, 1, flushed_offset=0)]),
        (on_topic(Op.READ), on_cluster(Op.CLUSTER_ACTION)),
    ),
    Case(
        m.FetchRequest(0, 1, 1, [m.FetchPartition(T, 0, 0, 1, log_start_offset=0)]),
        (on_topic(Op.READ), on_cluster(Op.CLUSTER_ACTION)),
    ),
    Case(m.ListOffsetsRequest([m.ListOffsetsPartition(T, 0, m.EARLIEST_TIMESTAMP)]), (on_topic(Op.DESCRIBE),)),
    Case(
        m.ListOffsetsRequest([m.ListOffsetsPartition(T, 0, m.EARLIEST_TIMESTAMP)], replica_id=2),
        (on_topic(Op.DESCRIBE), on_cluster(Op.CLUSTER_ACTION)),
    ),
    Case(m.DeleteRecordsRequest([m.DeleteRecordsPartition(T, 0, 0)]), (on_topic(Op.DELETE),)),
    Case(m.OffsetForLeaderEpochRequest([m.OffsetForLeaderEpochPartition(T, 0, 0)]), (on_topic(Op.DESCRIBE),)),
    Case(commit_of(T), (on_group(Op.READ), on_topic(Op.READ))),
    Case(m.OffsetFetchRequest(GROUP, [m.TopicPartitions(b"", T, [0])]), (on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE))),
    Case(m.OffsetFetchRequest(GROUP), (on_group(Op.DESCRIBE),)),
    Case(heartbeat_of(T), (on_group(Op.READ), on_topic(Op.DESCRIBE))),
    Case(heartbeat_of(epoch=m.LEAVING), (on_group(Op.READ),)),
    Case(m.DescribeGroupsRequest([GROUP]), (on_group(Op.DESCRIBE),)),
    Case(m.DeleteGroupsRequest([GROUP]), (on_group(Op.DELETE),)),
    Case(m.DeleteOffsetsRequest(GROUP, [m.TopicPartitions(b"", T, [0])]), (on_group(Op.DELETE), on_topic(Op.READ))),
    Case(m.ListUsersRequest(), (on_cluster(Op.DESCRIBE),)),
    Case(m.AlterUsersRequest([m.AlteredUser("nobody", m.UserChange.DELETE)]), (on_cluster(Op.ALTER),)),
    Case(m.CreateAclsRequest([]), (on_cluster(Op.ALTER),)),
    Case(m.DeleteAclsRequest([]), (on_cluster(Op.ALTER),)),
    Case(m.DescribeAclsRequest(m.AclFilter()), (on_cluster(Op.DESCRIBE),)),
    Case(
        m.CheckAclRequest(ANONYMOUS_PRINCIPAL, Op.READ, m.ResourceType.TOPIC, T),
        (on_cluster(Op.DESCRIBE),),
    ),
    Case(m.DescribeClientQuotasRequest(), (on_cluster(Op.DESCRIBE_CONFIGS),)),
    Case(m.AlterClientQuotasRequest([]), (on_cluster(Op.ALTER_CONFIGS),)),
    Case(
        m.AlterBrokerConfigRequest({"fetch.max.wait.ms": "1000"}, validate_only=True), (on_cluster(Op.ALTER_CONFIGS),)
    ),
    Case(m.FindSplitsRequest([m.FindSplitsPartition(T, 0, 0, 1)], 4096), (on_topic(Op.READ),)),
    Case(m.DescribeStatusRequest(), (on_cluster(Op.DESCRIBE),)),
    Case(m.DescribePartitionsRequest([m.InspectedPartition(T, 0)]), (on_topic(Op.DESCRIBE),)),
    Case(m.TraceIndexRequest(T, 0), (on_topic(Op.DESCRIBE),)),
    Case(m.EndTransactionRequest("tx", 1, 0, commits=True), (WRITE_ID,)),
    Case(
        m.TxnOffsetCommitRequest("tx", 1, 0, GROUP, [m.OffsetCommitPartition(b"", T, 0, 1)]),
        (WRITE_ID, on_group(Op.READ), on_topic(Op.READ)),
    ),
    Case(m.AbortTransactionRequest("tx"), (on_cluster(Op.ALTER),)),
    Case(m.JoinJobRequest("tx", 1, 60_000), (WRITE_ID,)),
    Case(m.JobHeartbeatRequest("tx", 1, MEMBER), (WRITE_ID,)),
    Case(m.CommitJobRequest("tx", 1, [MEMBER], 1), (WRITE_ID,)),
    Case(m.AbortJobMembersRequest("tx", 1, [MEMBER]), (WRITE_ID,)),
]
FREE = {m.HandshakeRequest, m.AuthenticateRequest, m.FindCoordinatorRequest}
OF_BROKERS = set(FAMILIES["brokers"])
"""Rights do not matter: a client is refused, whatever it may do."""
LISTS = {m.ListGroupsRequest, m.ListTransactionsRequest}
"""Their responses leave out what may not be described: see the tests below."""


def name_of(case: Case) -> str:
    return f"{m.API_OF_REQUEST[type(case.request)].name}-{'+'.join(map(repr, case.needs))}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker with topics t and secret of one record each, and a committed offset of group g in both."""
    directory = tmp_path_factory.mktemp("rights") / "data"
    with BrokerThread(directory, authorization="acl", group_initial_rebalance_delay_ms=0) as running:
        give(running, *ALL_RULES)
        with WireClient(running.address) as client:
            for topic in (T, SECRET):
                client.create_topic(topic)
                client.produce(topic, BATCH)
        ask(running, Case(commit_of(T, SECRET), ()))
        yield running


def give(broker: BrokerThread, *rules: m.AclBinding | Right) -> None:
    """Make these the only rules."""
    wanted = [
        m.AclBinding(ANONYMOUS_PRINCIPAL, rule.operation, rule.kind, rule.name) if isinstance(rule, Right) else rule
        for rule in rules
    ]
    authorizer = broker.in_loop(lambda running: running.services.authorizer)
    broker.run(authorizer.delete([m.AclFilter()], "User:test"))
    assert broker.run(authorizer.create(wanted, "User:test")) == [None] * len(wanted)


def ask(broker: BrokerThread, case: Case) -> m.Message:
    """The response; a coordinator is loaded when it is first asked for, and is asked again until it is."""
    while True:
        with WireClient(broker.address) as client, suppress(warmlog.CoordinatorLoadInProgress):
            return client.call(case.request, case.payload)


def codes_in(value: object) -> Iterator[int]:
    """All error codes in a response, in order."""
    if isinstance(value, Struct):
        for field in structs.fields(value):
            inner = getattr(value, field.name)
            if field.name == "error_code":
                yield inner
            else:
                yield from codes_in(inner)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from codes_in(each)


def is_refused(broker: BrokerThread, case: Case) -> bool:
    try:
        response = ask(broker, case)
    except warmlog.ApiError as error:  # others than AuthorizationFailed are the handler's
        return isinstance(error, warmlog.AuthorizationFailed) and ANONYMOUS_PRINCIPAL in str(error)
    return bool(REFUSED & set(codes_in(response)))


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_api_is_in_the_table_and_in_these_tests() -> None:
    assert RIGHTS.keys() == m.API_OF_REQUEST.keys()
    assert {type(case.request) for case in CASES} | FREE | LISTS | OF_BROKERS == set(m.API_OF_REQUEST)
    assert {request for request, rules in RIGHTS.items() if not rules} == FREE | OF_BROKERS


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_request_needs_its_rights_and_no_others(broker: BrokerThread, case: Case) -> None:
    give(broker)
    assert is_refused(broker, case)
    give(broker, *case.needs)
    assert not is_refused(broker, case)
    for missing in case.needs:
        give(broker, *(right for right in case.needs if right != missing))
        assert is_refused(broker, case)
        denying = m.AclBinding("User:*", missing.operation, missing.kind, missing.name, is_allowed=False)
        give(broker, *case.needs, denying)
        assert is_refused(broker, case)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_rights_of_others_and_on_others_do_not_help(broker: BrokerThread, case: Case) -> None:
    strange = [m.AclBinding("User:alice", *right) for right in case.needs]
    strange += [
        m.AclBinding(ANONYMOUS_PRINCIPAL, right.operation, right.kind, f"other-{right.name}")
        for right in case.needs
        if right.kind is not m.ResourceType.CLUSTER and "any" not in right.name
    ]
    if isinstance(case.request, m.InitProducerIdRequest):  # a right to write to whatever topic is enough
        strange = [rule for rule in strange if rule.principal == "User:alice"]
    give(broker, *strange)
    assert is_refused(broker, case)


def test_the_handshake_needs_no_right(broker: BrokerThread) -> None:
    give(broker)
    with WireClient(broker.address):
        pass


# --- requests that name several resources ---------------------------------------------------------------------------


class Mixed(NamedTuple):
    """A request for secret, t and secret again; the rights are those for t."""

    request: m.Message
    needs: tuple[Right, ...]
    results: Callable[[Any], Sequence[Any]]
    name: Callable[[Any], str] = lambda result: str(result.topic)
    payload: bytes = b""
    names: tuple[str, ...] = (SECRET, T, SECRET)


def partitions(response: Any) -> Sequence[Any]:
    return list(response.partitions)


def topics(response: Any) -> Sequence[Any]:
    return list(response.topics)


def named(result: Any) -> str:
    return str(result.name)


def three(make: Callable[[str], Any]) -> list[Any]:
    return [make(name) for name in (SECRET, T, SECRET)]


MIXED = [
    Mixed(m.MetadataRequest([SECRET, T, SECRET]), (on_topic(Op.DESCRIBE),), topics, named, names=(SECRET, T)),
    Mixed(m.CreateTopicsRequest(three(m.NewTopic)), (on_topic(Op.CREATE),), topics, named),
    Mixed(
        m.AlterTopicsRequest(three(m.AlteredTopic), validate_only=True), (on_topic(Op.ALTER_CONFIGS),), topics, named
    ),
    Mixed(
        m.CreatePartitionsRequest(three(lambda name: m.NewPartitions(name, 2)), validate_only=True),
        (on_topic(Op.ALTER),),
        topics,
        named,
    ),
    Mixed(
        m.DescribeConfigsRequest([SECRET, T, SECRET]), (on_topic(Op.DESCRIBE_CONFIGS),), lambda r: r.resources, named
    ),
    Mixed(fetch_of(SECRET, T, SECRET), (on_topic(Op.READ),), partitions),
    Mixed(
        m.ListOffsetsRequest(three(lambda name: m.ListOffsetsPartition(name, 0, m.EARLIEST_TIMESTAMP))),
        (on_topic(Op.DESCRIBE),),
        partitions,
    ),
    Mixed(
        m.DeleteRecordsRequest(three(lambda name: m.DeleteRecordsPartition(name, 0, 0))),
        (on_topic(Op.DELETE),),
        partitions,
    ),
    Mixed(
        m.OffsetForLeaderEpochRequest(three(lambda name: m.OffsetForLeaderEpochPartition(name, 0, 0))),
        (on_topic(Op.DESCRIBE),),
        partitions,
    ),
    Mixed(commit_of(SECRET, T, SECRET), (on_group(Op.READ), on_topic(Op.READ)), partitions),
    Mixed(
        m.DeleteOffsetsRequest(GROUP, three(lambda name: m.TopicPartitions(b"", name, [0]))),
        (on_group(Op.DELETE), on_topic(Op.READ)),
        partitions,
    ),
    Mixed(
        m.FindSplitsRequest(three(lambda name: m.FindSplitsPartition(name, 0, 0, 1)), 4096),
        (on_topic(Op.READ),),
        partitions,
    ),
    Mixed(
        m.DescribePartitionsRequest(three(lambda name: m.InspectedPartition(name, 0))),
        (on_topic(Op.DESCRIBE),),
        partitions,
    ),
    Mixed(produce_of(SECRET, T).request, (on_topic(Op.WRITE),), partitions, payload=BATCH * 2, names=(SECRET, T)),
]


@pytest.mark.parametrize("mixed", MIXED, ids=lambda mixed: m.API_OF_REQUEST[type(mixed.request)].name)
def test_each_refused_resource_has_its_error_at_its_place(broker: BrokerThread, mixed: Mixed) -> None:
    give(broker, *mixed.needs)
    results = mixed.results(ask(broker, Case(mixed.request, (), mixed.payload)))
    assert tuple(map(mixed.name, results)) == mixed.names
    for result in results:
        is_secret = mixed.name(result) == SECRET
        assert (result.error_code == warmlog.ErrorCode.TOPIC_AUTHORIZATION_FAILED) == is_secret
        if is_secret:
            assert "lacks the right" in result.error_message
            assert repr(SECRET) in result.error_message


def test_a_fetch_has_the_batches_of_the_topics_that_may_be_read(broker: BrokerThread) -> None:
    give(broker, on_topic(Op.READ))
    with WireClient(broker.address) as client:
        message, payload = client.receive(client.send(fetch_of(SECRET, T, SECRET)))
        sizes = [part.size_bytes for part in partitions(message)]
    assert sizes[0] == sizes[2] == 0
    assert sizes[1] == len(payload) > 0


def test_a_fetch_that_is_refused_in_part_does_not_wait(broker: BrokerThread) -> None:
    give(broker, on_topic(Op.READ))
    wanted = [m.FetchPartition(name, 0, 1_000, 1 << 20) for name in (SECRET,)]
    end = m.FetchPartition(T, 0, broker.in_loop(lambda b: b.topics.partition(T, 0).log.log_end_offset), 1 << 20)
    response = ask(broker, Case(m.FetchRequest(300_000, 1, 1 << 20, [*wanted, end]), ()))
    assert [part.error_code for part in partitions(response)] == [warmlog.ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]


def test_a_batch_for_a_refused_topic_is_not_written(broker: BrokerThread) -> None:
    give(broker, on_topic(Op.WRITE))

    def ends() -> list[int]:
        return broker.in_loop(lambda b: [b.topics.partition(name, 0).log.log_end_offset for name in (SECRET, T)])

    before = ends()
    response = ask(broker, produce_of(SECRET, T))
    assert [part.base_offset for part in partitions(response)] == [-1, before[1]]
    assert ends() == [before[0], before[1] + 1]


def test_without_acknowledgements_a_refused_topic_ends_the_connection(broker: BrokerThread) -> None:
    give(broker, on_topic(Op.WRITE))
    refused = produce_of(SECRET, acks=m.ACKS_NONE)
    with WireClient(broker.address) as client:
        client.send(refused.request, refused.payload, has_response=False)
        client.wait_for_end()


def test_a_topic_that_does_not_exist_and_one_that_does_are_refused_alike(broker: BrokerThread) -> None:
    give(broker)
    response: Any = ask(broker, Case(m.MetadataRequest([SECRET, "nonexistent"]), ()))
    secret, missing = response.topics
    assert secret.error_code == missing.error_code
    assert secret.topic_id == missing.topic_id
    assert secret.error_message.replace(SECRET, "") == missing.error_message.replace("nonexistent", "")


def test_the_id_of_a_topic_decides_and_not_the_name_beside_it(broker: BrokerThread) -> None:
    secret_id = broker.in_loop(lambda b: b.topics.get(SECRET).topic_id)
    give(broker, on_group(Op.READ), on_group(Op.DELETE), on_topic(Op.READ))
    disguised = m.TopicPartitions(secret_id, T, [0])
    commit = m.OffsetCommitRequest(GROUP, [m.OffsetCommitPartition(secret_id, T, 0, 1)])
    for request in (
        m.OffsetFetchRequest(GROUP, [disguised]),
        m.DeleteOffsetsRequest(GROUP, [disguised]),
        commit,
    ):
        assert is_refused(broker, Case(request, ()))


# --- lists -----------------------------------------------------------------------------------------------------------


def test_lists_leave_out_what_may_not_be_described(broker: BrokerThread) -> None:
    give(broker, *ALL_RULES)
    assert {topic.name for topic in topics(ask(broker, Case(m.MetadataRequest(), ())))} == {T, SECRET}
    ask(broker, Case(commit_of(T, SECRET), ()))
    give(broker)
    assert topics(ask(broker, Case(m.MetadataRequest(), ()))) == []
    assert _groups(broker) == []
    give(broker, on_topic(Op.READ), on_group(Op.READ))
    assert {topic.name for topic in topics(ask(broker, Case(m.MetadataRequest(), ())))} == {T}
    assert _groups(broker) == [GROUP]
    offsets = partitions(ask(broker, Case(m.OffsetFetchRequest(GROUP), ())))
    assert [each.topic for each in offsets] == [T]
    give(broker, on_cluster(Op.DESCRIBE))
    assert _groups(broker) == [GROUP]


def _groups(broker: BrokerThread) -> list[str]:
    response: Any = ask(broker, Case(m.ListGroupsRequest(), ()))
    return [each.name for each in response.groups]


def test_a_list_leaves_out_transactional_ids_that_may_not_be_described(broker: BrokerThread) -> None:
    give(broker, *ALL_RULES)
    for name in ("tx", "hidden"):
        ask(broker, Case(m.InitProducerIdRequest(name), ()))
    assert _transactional_ids(broker) >= {"tx", "hidden"}
    for right in (Right(Op.DESCRIBE, m.ResourceType.TRANSACTIONAL_ID, "tx"), WRITE_ID):
        give(broker, right)
        assert _transactional_ids(broker) == {"tx"}
        assert _transactional_ids(broker, "hidden") == set()
    give(broker, on_cluster(Op.DESCRIBE))
    assert _transactional_ids(broker) == set()


def _transactional_ids(broker: BrokerThread, wanted: str | None = None) -> set[str]:
    response: Any = ask(broker, Case(m.ListTransactionsRequest(wanted), ()))
    return {each.transactional_id for each in response.transactions}


def test_a_transaction_leaves_out_topics_and_groups_that_may_not_be_described(broker: BrokerThread) -> None:
    give(broker, *ALL_RULES)
    with WireClient(broker.address) as client:
        producer: Any = ask(broker, Case(m.InitProducerIdRequest("parts"), ()))
        ids = producer.producer_id, producer.producer_epoch
        batch = batch_of([b"x"], producer=ids, base_sequence=0, is_transactional=True)
        for topic in (T, SECRET):
            wanted = [m.ProducePartition(topic, 0, len(batch))]
            client.receive(client.send(m.ProduceRequest(m.ACKS_ALL, 10_000, wanted, "parts"), batch))
        for group in (GROUP, "hidden"):
            client.call(m.TxnOffsetCommitRequest("parts", *ids, group, [m.OffsetCommitPartition(b"", T, 0, 0)]))

        def parts() -> tuple[list[str], list[str]]:
            response: Any = client.call(m.ListTransactionsRequest("parts"))
            (found,) = response.transactions
            return sorted(each.topic for each in found.partitions), sorted(found.groups)

        assert parts() == (sorted([SECRET, T]), sorted([GROUP, "hidden"]))
        on_id = Right(Op.DESCRIBE, m.ResourceType.TRANSACTIONAL_ID, "parts")
        give(broker, on_id)
        assert parts() == ([], [])
        give(broker, on_id, on_topic(Op.DESCRIBE), on_group(Op.DESCRIBE))
        assert parts() == ([T], [GROUP])
        give(broker, *ALL_RULES)
        client.call(m.EndTransactionRequest("parts", *ids, False))


def test_a_group_whose_topics_may_not_be_described_is_not_described(broker: BrokerThread) -> None:
    give(broker, *ALL_RULES)
    ask(broker, Case(heartbeat_of(SECRET), ()))
    give(broker, on_group(Op.DESCRIBE))
    response: Any = ask(broker, Case(m.DescribeGroupsRequest([GROUP, "other"]), ()))
    assert [each.error_code for each in response.groups] == [
        warmlog.ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        warmlog.ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ]
    assert SECRET not in str(response)
    give(broker, on_group(Op.READ), on_topic(Op.DESCRIBE, SECRET))
    shown: Any = ask(broker, Case(m.DescribeGroupsRequest([GROUP]), ()))
    assert shown.groups[0].members[0].topics == [SECRET]
    give(broker, *ALL_RULES)
    ask(broker, Case(heartbeat_of(epoch=m.LEAVING), ()))


def test_a_pattern_of_a_group_finds_no_topic_that_may_not_be_described(broker: BrokerThread) -> None:
    def heartbeat(client: WireClient, epoch: int, **fields: Any) -> Any:
        joining = {"topics": [], "pattern": ".*", "assignor": "", "owned": []} if epoch == m.JOINING else {}
        return client.call(m.GroupHeartbeatRequest("patterns", "m", epoch, **joining, **fields))

    def topics_at(client: WireClient, expected: set[str]) -> None:
        response = heartbeat(client, m.JOINING)
        while {each.topic for each in response.assignment or ()} != expected:
            response = heartbeat(client, response.member_epoch, owned=response.assignment or [])

    group = Right(Op.READ, m.ResourceType.GROUP, "patterns")
    give(broker, group, on_topic(Op.DESCRIBE))
    with WireClient(broker.address) as client:
        topics_at(client, {T})
        give(broker, group, on_topic(Op.DESCRIBE), on_topic(Op.DESCRIBE, SECRET))
        topics_at(client, {T, SECRET})
        give(broker, group, on_topic(Op.DESCRIBE))
        topics_at(client, {T})
        heartbeat(client, m.LEAVING)


# --- what is told ----------------------------------------------------------------------------------------------------


def test_the_operator_sees_why_and_the_client_only_that(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    def denied() -> dict[tuple[str, str, str], int]:
        return broker.in_loop(lambda b: dict(b.services.counters.denied))

    broker.in_loop(lambda b: b.services.counters.denied.clear())
    broker.in_loop(lambda b: b.services.lines.finish(0.0))
    texts = []
    for rules in ((), (m.AclBinding("User:*", Op.ALL, m.ResourceType.TOPIC, "sec", is_prefix=True, is_allowed=False),)):
        give(broker, *rules)
        response: Any = ask(broker, Case(fetch_of(SECRET), ()))
        texts.append(response.partitions[0].error_message)
    assert texts[0] == texts[1]
    assert denied() == {("warmlog", "Fetch", "no rule"): 1, ("warmlog", "Fetch", "denied"): 1}
    lines = [record.getMessage() for record in caplog.records if "Fetch" in record.getMessage()]
    assert "no rule allows it" in lines[0]
    assert "a rule denies it" in lines[1]
    for text in lines:
        for told in (ANONYMOUS_PRINCIPAL, "from 127.0.0.1:", f"READ on topic '{SECRET}'"):
            assert told in text


def test_refusals_do_not_flood_the_log(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    give(broker)
    broker.in_loop(lambda b: b.services.lines.finish(0.0))
    with WireClient(broker.address) as client:
        for _ in range(100):
            client.call(m.MetadataRequest([SECRET]))
    assert len([record for record in caplog.records if "was refused" in record.getMessage()]) <= 20


def test_many_refusals_have_one_line_and_all_count(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    give(broker)
    broker.in_loop(lambda b: b.services.counters.denied.clear())
    broker.in_loop(lambda b: b.services.lines.finish(0.0))
    names = [f"secret-{number}" for number in range(500)]
    response: Any = ask(broker, Case(m.MetadataRequest(names), ()))
    assert [topic.name for topic in response.topics] == names
    assert len([record for record in caplog.records if "was refused" in record.getMessage()]) == 1
    assert broker.in_loop(lambda b: dict(b.services.counters.denied)) == {("warmlog", "Metadata", "no rule"): 500}


def test_transactional_ids_have_rights_of_their_own(broker: BrokerThread) -> None:
    give(broker, on_topic(Op.WRITE))
    request = m.ProduceRequest(m.ACKS_ALL, 10_000, [m.ProducePartition(T, 0, len(BATCH))], transactional_id="tx")
    with pytest.raises(warmlog.TransactionalIdAuthorizationFailed, match="WRITE on transactional id 'tx'"):
        ask(broker, Case(request, (), BATCH))
