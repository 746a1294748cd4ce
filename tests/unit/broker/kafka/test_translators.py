"""The table of translators: each has its function, and a response for a request that failed as a whole."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.kafka_apis_page import PAGE, page
from unit.protocol.kafka.kafka_strategies import messages
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.kafka.codec import KafkaCodec, KafkaStarted
from warmlog_broker.kafka.translators import TRANSLATORS, Served, translator_of
from warmlog_broker.network.request import Endpoint
from warmlog_protocol.errors import ApiError, DiskFull, ErrorCode, InvalidRequest
from warmlog_protocol.kafka.compiled import FIRST_OWN_CODE, reader, writer
from warmlog_protocol.kafka.connection import KafkaRequest
from warmlog_protocol.kafka.schema import API, Api

each_api = pytest.mark.parametrize("name", TRANSLATORS)


@each_api
def test_it_is_a_function_with_the_name_of_its_api(name: str) -> None:
    assert callable(translator_of(name))


@each_api
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_request_that_fails_as_a_whole_has_a_response_with_the_error(name: str, data: st.DataObject) -> None:
    api = API[name]
    version = data.draw(st.integers(api.versions.first, api.versions.last))
    request = data.draw(messages(name, "request", version))
    codes = _codes_told(api, version, request, InvalidRequest("the reason"))
    assert codes <= {ErrorCode.INVALID_REQUEST, ErrorCode.NONE}
    assert max(_codes_told(api, version, request, DiskFull("one of warmlog's own codes")), default=0) < FIRST_OWN_CODE
    has_own_code = any(
        each.name == "error_code" and version in each.versions for each in api.structs["response"]["response"]
    )
    if has_own_code:
        assert ErrorCode.INVALID_REQUEST in codes


def _codes_told(api: Api, version: int, request: Any, error: ApiError) -> set[int]:
    response = Served({}, {}).failed(api, version, request, error)
    written = b"".join(writer(api.name, "response", version)(response))
    return set(_codes(reader(api.name, "response", version)(written, 10_000)))


def _codes(value: Any) -> list[int]:
    """All error codes in a message."""
    if isinstance(value, list):
        return [code for each in value for code in _codes(each)]
    fields = getattr(value, "__struct_fields__", ())
    own = [getattr(value, each) for each in fields if each.endswith("error_code")]
    return own + [code for each in fields if not each.endswith("error_code") for code in _codes(getattr(value, each))]


def test_a_request_that_waits_is_not_kept_for_an_error_that_does_not_need_it() -> None:
    endpoints = {API[name].key: Endpoint(name, lambda *_: None) for name in ("SyncGroup", "JoinGroup")}
    codec = KafkaCodec(BrokerConfig(), Served({}, endpoints))

    def begun(name: str) -> KafkaStarted:
        return codec.begin(KafkaRequest(API[name], 5, 1, "c", API[name].request(api_version=5), memoryview(b""), True))

    sync, join = begun("SyncGroup"), begun("JoinGroup")
    assert (sync.message, join.message) == (None, API["JoinGroup"].request(api_version=5))
    assert codec.encode_error(sync, InvalidRequest("the reason"))


def test_the_page_says_what_the_tables_say() -> None:
    assert PAGE.read_text() == page(), "run PYTHONPATH=tests python -m docs.kafka_apis_page"
