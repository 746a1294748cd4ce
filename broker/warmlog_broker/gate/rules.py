"""What a row of the table of rights is made of.

A rule takes a request and returns what of it the handler gets, and how its response is changed. It raises
AuthorizationFailed if all is refused.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from warmlog_broker.gate.asker import Asker
from warmlog_broker.handlers.items import PartitionItem
from warmlog_broker.network.request import MessageWithSlices, Ready
from warmlog_protocol.errors import AuthorizationFailed
from warmlog_protocol.messages import API_OF_REQUEST, CLUSTER_NAME, Message, Operation, ResourceType

Revise = Callable[[Any], Ready]
"""Changes a response. It is given None if no handler has run."""
Admitted = tuple[Message | None, Revise | None]
"""What the handler gets, None for nothing at all; and how its response is changed, None for not at all."""
Rule = Callable[[Asker, Any], Admitted]


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole request needs one operation on each resource that `names` returns."""

    operation: Operation
    resource_type: ResourceType
    names: Callable[[Any], Iterable[str]]

    def __call__(self, asker: Asker, message: Message) -> Admitted:
        for name in self.names(message):
            asker.require(self.operation, self.resource_type, name)
        return message, None


def on_cluster(operation: Operation) -> Whole:
    """The whole request needs an operation on the cluster."""
    return Whole(operation, ResourceType.CLUSTER, lambda _: (CLUSTER_NAME,))


def topic_of(_asker: Asker, item: PartitionItem) -> str:
    return item.topic


def name_of(_asker: Asker, item: Any) -> str:
    name: str = item.name
    return name


def identified_topic_of(asker: Asker, item: Any) -> str:
    """The topic of an item whose id decides."""
    return asker.topic_name(item.topic_id, item.topic)


@dataclass(frozen=True, slots=True)
class Each:
    """Each item needs one of the `operations` on its resource. Refused ones have their results at their places.

    The handler gets the other items, if there are any, or if it `runs_without` them.
    """

    operations: tuple[Operation, ...]
    resource_type: ResourceType
    items: str
    """The field of the request, a list."""
    results: str
    """The field of the response."""
    refused: Callable[[Any, AuthorizationFailed], Any]
    """Return the result of a refused item, or a list of them."""
    named: Callable[[Asker, Any], str] = lambda _, item: item
    result_count: Callable[[Any], int] = lambda _: 1
    """Return how many results an item has."""
    is_distinct: bool = False
    """Whether items that are equal have one result."""
    runs_without: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    """Other fields of a request that is refused in part."""

    def __call__(self, asker: Asker, message: Message) -> Admitted:
        items = getattr(message, self.items)
        may, named, resource_type, operation = asker.may, self.named, self.resource_type, self.operations[0]
        last = None
        for item in items:
            name = named(asker, item)
            if name != last and not may(operation, resource_type, name):
                return self._sorted_out(asker, message, items)
            last = name
        return message, None

    def _sorted_out(self, asker: Asker, message: Message, items: Sequence[Any]) -> Admitted:
        """Return what of the request may be handled, which may be all of it."""
        errors: dict[str, AuthorizationFailed] = {}
        for name in dict.fromkeys([self.named(asker, item) for item in items]):
            if not any(asker.may(operation, self.resource_type, name) for operation in self.operations):
                errors[name] = asker.refusal(self.operations[0], self.resource_type, name)
        if not errors:
            return message, None
        if self.is_distinct:
            items = list(dict.fromkeys(items))
        verdicts = [(item, errors.get(self.named(asker, item))) for item in items]
        for _, error in verdicts:
            if error is not None:
                asker.count(error)
        kept = [item for item, error in verdicts if error is None]
        reduced = replace(message, **{self.items: kept}, **self.changes) if kept or self.runs_without else None
        return reduced, lambda response: self._merged(API_OF_REQUEST[type(message)].response, verdicts, response)

    def _merged(
        self,
        kind: type[Message],
        verdicts: Sequence[tuple[Any, AuthorizationFailed | None]],
        response: Message | MessageWithSlices | None,
    ) -> Ready:
        """Return a response of this kind with the results of the handler and the refused ones."""
        slices = response.slices if isinstance(response, MessageWithSlices) else ()
        done_message = response.message if isinstance(response, MessageWithSlices) else response
        done = iter(() if done_message is None else getattr(done_message, self.results))
        done_slices = iter(slices)
        results: list[Any] = []
        all_slices: list[Any] = []
        for item, error in verdicts:
            if error is None:
                own = [next(done) for _ in range(self.result_count(item))]
            else:
                refused = self.refused(item, error)
                own = refused if isinstance(refused, list) else [refused]
            results += own
            if slices:
                all_slices += [next(done_slices) if error is None else [] for _ in own]
        if done_message is None:
            return kind(**{self.results: results})
        merged = replace(done_message, **{self.results: results})
        return MessageWithSlices(merged, all_slices) if slices else merged


@dataclass(frozen=True, slots=True)
class Listed:
    """The response leaves out what the principal may not describe."""

    resource_type: ResourceType
    results: str
    named: Callable[[Asker, Any], str]

    def __call__(self, asker: Asker, message: Message) -> Admitted:
        def revise(response: Any) -> Any:
            shown = [
                each
                for each in getattr(response, self.results)
                if asker.may(Operation.DESCRIBE, self.resource_type, self.named(asker, each))
            ]
            return replace(response, **{self.results: shown})

        return message, revise
