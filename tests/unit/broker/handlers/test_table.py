"""The table of handlers."""

from inspect import signature
from typing import get_type_hints

import pytest

from warmlog_broker.handlers import _FAMILIES, handler_of
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request_context import RequestContext
from warmlog_protocol.messages import APIS, ApiKey


@pytest.mark.parametrize(("key", "family"), [(key, family) for family, keys in _FAMILIES.items() for key in keys])
def test_a_handler_takes_services_the_context_and_the_request_of_its_api(key: ApiKey, family: str) -> None:
    handler = handler_of(key, family)
    types = get_type_hints(handler)
    parameters = [types[name] for name in signature(handler).parameters]
    assert parameters[:3] == [Services, RequestContext, APIS[key].request]
