"""The decisions about one request. The response to what is refused says what right is missing, the log says why."""

import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import RequestContext
from warmlog_broker.security.authorizer import resource_text
from warmlog_protocol import errors
from warmlog_protocol.messages import CLUSTER_NAME, Operation, ResourceType

NO_RULE, DENIED = "no rule", "denied"
"""Why something is refused, as metrics say it."""
_SHOWN_CHARACTERS = 80
_ERRORS: dict[ResourceType, type[errors.AuthorizationFailed]] = {
    ResourceType.TOPIC: errors.TopicAuthorizationFailed,
    ResourceType.GROUP: errors.GroupAuthorizationFailed,
    ResourceType.CLUSTER: errors.ClusterAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: errors.TransactionalIdAuthorizationFailed,
}


class Asker:
    """One request, and the principal that sends it."""

    __slots__ = ("_api", "_authorizer", "_context", "_is_logged", "_principal", "_services")

    def __init__(self, services: Services, context: RequestContext, api: str) -> None:
        """`api` is the name of the request's kind."""
        self._services = services
        self._context = context
        self._authorizer = services.authorizer
        self._principal = context.principal
        self._is_logged = False
        self._api = api

    def may(self, operation: Operation, resource_type: ResourceType, name: str | None) -> bool:
        """Return whether this is allowed; on any resource of the type, if `name` is None."""
        return self._authorizer.may(self._principal, operation, resource_type, name)

    def may_in_cluster(self, operation: Operation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def require(self, operation: Operation, resource_type: ResourceType, name: str | None) -> None:
        """Raise the error of `refusal` unless this is allowed."""
        if not self.may(operation, resource_type, name):
            raise self.refusal(operation, resource_type, name)

    def refusal(
        self, operation: Operation, resource_type: ResourceType, name: str | None
    ) -> errors.AuthorizationFailed:
        """Count that this is refused, log the first of the request, and return the error for the response."""
        principal = self._principal
        is_denied = self._authorizer.is_denied_by_rule(principal, operation, resource_type, name)
        self._services.counters.denied[self._context.wire, self._api, DENIED if is_denied else NO_RULE] += 1
        shown = name if name is None or len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…"
        what = f"{operation.name} on {resource_text(resource_type, shown)}"
        if not self._is_logged:
            self._is_logged = True
            api, reason = self._api, "a rule denies it" if is_denied else "no rule allows it"
            text = f"{api} of {principal} from {self._context.peer} was refused: {what}: {reason}"
            now_s = self._services.loop.time()
            self._services.lines.write(logging.WARNING, f"refused requests, {api}", text, now_s)
        error = _ERRORS[resource_type]
        return error(f"{principal} lacks the right {what}; an operator can give it by `warmlog acl add`")

    def count(self, error: errors.AuthorizationFailed) -> None:
        """Count an error of one item of the request."""
        self._services.counters.errors[self._context.wire, self._api, type(error).__name__] += 1

    def topic_name(self, topic_id: bytes, name: str) -> str:
        """Return what the topic that a request means is called: its id decides, if it has one."""
        topic = self._services.topics.find_by_id(topic_id) if topic_id else None
        return name if topic is None else topic.name
