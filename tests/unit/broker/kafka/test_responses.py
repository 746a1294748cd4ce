"""Responses repeat the items of their request, with a result or an error for each."""

from typing import Any

import pytest

from warmlog_broker.kafka.responses import Result, answered, failed, has_items
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, InvalidRequest
from warmlog_protocol.kafka.compiled import reader, writer
from warmlog_protocol.kafka.schema import API

REASON = InvalidRequest("the reason")
CODE = ErrorCode.INVALID_REQUEST


def asked(name: str, version: int, **fields: Any) -> Any:
    return API[name].request(api_version=version, **fields)


def sent(name: str, version: int, response: Any) -> Any:
    """The response as a client reads it."""
    return reader(name, "response", version)(b"".join(writer(name, "response", version)(response)), 10_000)


def test_results_are_in_the_places_of_their_items() -> None:
    of = API["ListOffsets"].request
    topics = [of.ListOffsetsTopic(name, [of.ListOffsetsPartition(n) for n in range(2)]) for name in ("a", "b")]
    found = [
        m.ListedOffset("a", 0, 0, "", 7, 1),
        m.ListedOffset("a", 1, 3, "no"),
        m.ListedOffset("b", 0, 0, "", 8, 2, 4),
    ]
    response = answered("ListOffsets", asked("ListOffsets", 4, topics=topics), [*found, Result(6)])
    told = [
        (topic.name, part.partition_index, part.error_code, part.timestamp, part.offset, part.leader_epoch)
        for topic in sent("ListOffsets", 4, response).topics
        for part in topic.partitions
    ]
    assert told == [("a", 0, 0, 7, 1, -1), ("a", 1, 3, -1, -1, -1), ("b", 0, 0, 8, 2, 4), ("b", 1, 6, -1, -1, -1)]


@pytest.mark.parametrize("version", [2, 3])
def test_a_version_with_one_item_has_its_result_itself(version: int) -> None:
    leaving = API["LeaveGroup"].request.MemberIdentity("me", None)
    response = answered("LeaveGroup", asked("LeaveGroup", version, members=[leaving]), [Result(25)])
    told = sent("LeaveGroup", version, response)
    assert has_items(API["LeaveGroup"], version) == (version == 3)
    if version == 2:
        assert told.error_code == 25
    else:
        assert (told.error_code, told.members) == (0, [API["LeaveGroup"].response.MemberResponse("me", None, 25)])


def test_a_request_that_failed_says_so_for_each_item() -> None:
    of = API["Fetch"].request
    topics = [of.FetchTopic("a", partitions=[of.FetchPartition(4), of.FetchPartition(9)])]
    told = sent("Fetch", 11, failed(API["Fetch"], 11, asked("Fetch", 11, topics=topics), REASON))
    assert told.error_code == CODE
    assert [(part.partition_index, part.error_code) for part in told.responses[0].partitions] == [(4, CODE), (9, CODE)]
    assert {part.high_watermark for part in told.responses[0].partitions} == {-1}


def test_an_item_may_be_a_name_and_a_name_may_be_missing() -> None:
    told = sent(
        "DescribeGroups", 6, failed(API["DescribeGroups"], 6, asked("DescribeGroups", 6, groups=["a", "b"]), REASON)
    )
    assert [(each.group_id, each.error_code, each.error_message) for each in told.groups] == [
        ("a", CODE, "the reason"),
        ("b", CODE, "the reason"),
    ]
    topic = API["Metadata"].request.MetadataRequestTopic(b"x" * 16, None)
    for version, name in ((10, ""), (12, None)):
        (told,) = sent(
            "Metadata", version, failed(API["Metadata"], version, asked("Metadata", version, topics=[topic]), REASON)
        ).topics
        assert (told.name, told.topic_id, told.error_code) == (name, b"x" * 16, CODE)


def test_the_address_of_no_coordinator_is_none() -> None:
    for version in (2, 4):
        request = asked("FindCoordinator", version, key="g", coordinator_keys=["g"])
        told = sent("FindCoordinator", version, failed(API["FindCoordinator"], version, request, REASON))
        for each in told.coordinators if version == 4 else [told]:
            assert (each.error_code, each.error_message, each.node_id, each.port) == (CODE, "the reason", -1, -1)
