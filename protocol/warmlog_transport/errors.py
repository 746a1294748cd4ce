"""Errors of a client's connections: below every client, and below a broker that is the client of another.

They are part of the tree in `warmlog.errors`, where users import them.
"""

from warmlog_protocol import errors


class ClientError(errors.WarmlogError):
    """The client failed without a refusal by the broker."""


class BrokerUnavailable(ClientError):
    """No broker could be reached, or the connection was lost before the response."""


class ClientClosed(ClientError):
    """The client is not started, or closed."""


class WrongEventLoop(ClientError):
    """An asyncio client works only in the event loop that it was started in."""


TOPIC_IS_GONE = (errors.UnknownTopicId, errors.InconsistentTopicId, errors.UnknownTopicOrPartition)
"""The topic or the partition does not exist, or another topic has its name."""

LEADER_HAS_MOVED = (errors.NotLeaderOrFollower, errors.FencedLeaderEpoch, errors.LeaderNotAvailable)
"""Metadata will say where, soon: see `pause_after_s`."""


def may_pass(error: BrokerUnavailable | errors.ApiError) -> bool:
    """Whether a retry may help: no broker responded, or the error is retriable.

    An unknown topic is not worth a retry: a broker that responds knows all its topics.
    """
    return isinstance(error, BrokerUnavailable) or (error.retriable and not isinstance(error, TOPIC_IS_GONE))
