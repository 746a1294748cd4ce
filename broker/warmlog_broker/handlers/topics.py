"""CreateTopics and DeleteTopics: answered once the metadata log is flushed."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.metadata import NO_TOPIC_ID
from warmlog_broker.network.peer import Asker
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import (
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from warmlog_protocol.wire.connection import Request


async def create_topics(services: Services, asker: Asker, request: Request) -> CreateTopicsResponse:  # noqa: ARG001
    """Each topic by itself: one that is refused does not keep the others from being created."""
    message = request.message
    assert isinstance(message, CreateTopicsRequest)
    refusal = services.write_refusal()
    if refusal is not None:
        raise refusal
    results = await services.topics.create(message.topics, validate_only=message.validate_only)
    created = []
    for new, result in zip(message.topics, results, strict=True):
        if isinstance(result, ApiError):
            created.append(CreatedTopic(result.code, str(result), new.name, NO_TOPIC_ID, 0))
        else:
            topic_id = NO_TOPIC_ID if message.validate_only else result.topic_id
            created.append(CreatedTopic(ErrorCode.NONE, "", new.name, topic_id, result.partitions))
    return CreateTopicsResponse(created)


async def delete_topics(services: Services, asker: Asker, request: Request) -> DeleteTopicsResponse:  # noqa: ARG001
    """Each topic by itself."""
    message = request.message
    assert isinstance(message, DeleteTopicsRequest)
    return DeleteTopicsResponse([await _delete(services, name) for name in message.names])


async def _delete(services: Services, name: str) -> DeletedTopic:
    try:
        await services.topics.delete(name)
    except ApiError as error:
        return DeletedTopic(error.code, str(error), name)
    except Exception:
        failure = own_failure(f"DeleteTopics of {name!r}")
        return DeletedTopic(failure.code, str(failure), name)
    return DeletedTopic(ErrorCode.NONE, "", name)
