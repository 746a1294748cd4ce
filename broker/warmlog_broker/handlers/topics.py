"""CreateTopics and DeleteTopics: answered once the metadata log is flushed."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.handlers.metadata import NO_TOPIC_ID
from warmlog_broker.network.request_context import RequestContext
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import (
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)


async def create_topics(
    services: Services, _context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Each topic by itself: one that is refused does not keep the others from being created."""
    refusal = services.write_refusal()
    if refusal is not None:
        raise refusal
    results = await services.topics.create(request.topics, validate_only=request.validate_only)
    created = []
    for new, result in zip(request.topics, results, strict=True):
        if isinstance(result, ApiError):
            created.append(CreatedTopic(result.code, str(result), new.name, NO_TOPIC_ID, 0))
        else:
            topic_id = NO_TOPIC_ID if request.validate_only else result.topic_id
            created.append(CreatedTopic(ErrorCode.NONE, "", new.name, topic_id, result.partitions))
    return CreateTopicsResponse(created)


async def delete_topics(
    services: Services, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Each topic by itself."""

    async def delete(name: str) -> DeletedTopic:
        await services.topics.delete(name)
        return DeletedTopic(ErrorCode.NONE, "", name)

    items = Items(services, context, "DeleteTopics")
    return DeleteTopicsResponse(await items.handle_all(request.names, delete, _not_deleted))


def _not_deleted(name: str, error: ApiError) -> DeletedTopic:
    return DeletedTopic(error.code, str(error), name)
