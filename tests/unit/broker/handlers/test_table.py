"""The table of handlers."""

from inspect import signature
from typing import get_type_hints

import pytest

from warmlog_broker.handlers import HANDLERS
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request_context import RequestContext
from warmlog_protocol.messages import APIS


@pytest.mark.parametrize("key", sorted(APIS))
def test_a_handler_takes_services_the_context_and_the_request_of_its_api(key: int) -> None:
    handler = HANDLERS[key]
    types = get_type_hints(handler)
    parameters = [types[name] for name in signature(handler).parameters]
    assert parameters[:3] == [Services, RequestContext, APIS[key].request]
