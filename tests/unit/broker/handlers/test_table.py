"""The table of handlers."""

from inspect import signature
from typing import get_type_hints

import pytest

from warmlog_broker.handlers import FAMILIES, TRAITS, handler_of
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import RequestContext
from warmlog_protocol.messages import API_OF_REQUEST, Message

ROWS = [(request, family) for family, requests in FAMILIES.items() for request in requests]


def test_each_request_has_a_handler() -> None:
    assert sorted(API_OF_REQUEST, key=repr) == sorted([request for request, _ in ROWS], key=repr)
    assert TRAITS.keys() <= API_OF_REQUEST.keys()


@pytest.mark.parametrize(("request_type", "family"), ROWS)
def test_a_handler_takes_services_the_context_and_the_request_of_its_api(
    request_type: type[Message], family: str
) -> None:
    handler = handler_of(request_type, family)
    types = get_type_hints(handler)
    parameters = [types[name] for name in signature(handler).parameters]
    assert parameters[:3] == [Services, RequestContext, request_type]
