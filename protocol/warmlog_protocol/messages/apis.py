"""The table that joins requests and responses, and the error response that any request may get."""

from msgspec import Struct

from warmlog_protocol.messages import (
    fetch,
    inspection,
    log_dirs,
    metadata,
    offsets,
    produce,
    replicas,
    replication,
    splits,
    topics,
)
from warmlog_protocol.messages.access import acls, authenticate, quotas
from warmlog_protocol.messages.base import ApiKey, Message
from warmlog_protocol.messages.coordinators import finding, groups, jobs, transactions


class ErrorResponse(Message, frozen=True):
    """The body of every response whose error code is not NONE."""

    message: str


class Api(Struct, frozen=True):
    """One row of the table."""

    key: ApiKey
    request: type[Message]
    response: type[Message]
    min_version: int = 0
    max_version: int = 0

    @property
    def name(self) -> str:
        """As in the documentation: "CreateTopics"."""
        return self.request.__name__.removesuffix("Request")


_MODULES = (
    *(acls, authenticate, fetch, finding, groups, inspection, jobs, log_dirs, metadata, offsets, produce, quotas),
    *(replicas, replication, splits, topics, transactions),
)
_MESSAGES = {name: found for module in _MODULES for name, found in vars(module).items()}


def _api(key: ApiKey) -> Api:
    """Return the row of a key: CREATE_TOPICS has CreateTopicsRequest and CreateTopicsResponse."""
    name = key.name.title().replace("_", "")
    return Api(key, _MESSAGES[f"{name}Request"], _MESSAGES[f"{name}Response"])


APIS: dict[int, Api] = {key: _api(key) for key in ApiKey}
"""Every API that broker and client speak, by its key."""

API_OF_REQUEST: dict[type[Message], Api] = {api.request: api for api in APIS.values()}
