"""Changes settings of the broker while it runs: those that are dynamic, and the defaults of topics.

A change is in the metadata log before it takes effect, and in force when the response is sent. It takes precedence over
what the broker was started with, also after a restart.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from warmlog_broker.config.broker_config import SETTINGS, BrokerConfig, Origin, parse_setting, shown, unknown_setting
from warmlog_broker.metadata.metadata_log import BrokerAltered
from warmlog_broker.metadata.store import NodeStore
from warmlog_broker.topics.topic_changes import TopicChanges
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import InvalidConfig, InvalidRequest, NeedsRestart

_log = logging.getLogger(__name__)


def still_valid(started: BrokerConfig, own: Mapping[str, str]) -> dict[str, str]:
    """Return the altered settings that can be in force over those of a start; the log names the others.

    Another version, or other settings of the start, may exclude what was valid when it was altered.
    """
    kept: dict[str, str] = {}
    try:
        started.altered(own)
    except (InvalidConfig, NeedsRestart):
        for is_last in (False, True):  # one may be valid only with another that comes after it
            for name in [name for name in own if name not in kept]:
                try:
                    started.altered({**kept, name: own[name]})
                except (InvalidConfig, NeedsRestart) as error:
                    if is_last:
                        _log.warning("the altered setting %s is not in force: %s", name, error)
                else:
                    kept[name] = own[name]
        return kept
    return dict(own)


class BrokerChanges:
    """The settings of one broker, altered while it runs."""

    def __init__(
        self,
        config: BrokerConfig,
        started: BrokerConfig,
        *,
        topics: Topics,
        topic_changes: TopicChanges,
        node: NodeStore,
    ) -> None:
        """`config` is what all parts of the broker use; `started` is the same without what was altered."""
        self.on_altered: list[Callable[[], None]] = []
        """Called after settings have changed, for the parts that keep a copy."""
        self._config = config
        self._started = started
        self._own = {name: each.text for name, each in config.given.items() if each.origin is Origin.ALTERED}
        self._topics = topics
        self._topic_changes = topic_changes
        self._node = node

    async def alter(
        self, wanted: Mapping[str, str], unset: Sequence[str], *, validate_only: bool, by: str
    ) -> dict[str, str]:
        """Change settings durably, all or none; return all that are altered then. `by` is the principal, for the log.

        InvalidConfig, InvalidRequest, NeedsRestart, StorageError.
        """
        async with self._topics.changing:
            own = self._own_after(wanted, unset)
            config = self._started.altered(own)
            has_other_defaults = config.topic_defaults != self._config.topic_defaults
            if has_other_defaults:
                await self._topic_changes.check_defaults(config.topic_defaults)
            if not validate_only and own != self._node.state.broker_settings:
                await self._node.commit([BrokerAltered(own)])
                self._own = own
                self._config.take(config)
                if has_other_defaults:
                    await self._topic_changes.take_defaults()
                for on_altered in self.on_altered:
                    on_altered()
                changes = [f"{name}={shown(name, text)}" for name, text in wanted.items()]
                changes += [f"{name} as at the start" for name in unset]
                _log.info("%s has altered settings of the broker: %s", by, ", ".join(changes))
        return own

    def _own_after(self, wanted: Mapping[str, str], unset: Sequence[str]) -> dict[str, str]:
        if not wanted and not unset:
            raise InvalidRequest("no setting to alter: name one to set, or to unset")
        for name in unset:
            if name in wanted:
                raise InvalidRequest(f"{name} is both set and unset: give it once")
            if name not in SETTINGS:
                raise unknown_setting(name)
        own = {name: text for name, text in self._own.items() if name not in unset}
        # In the form that every version reads: 7d is 604800000.
        values = {name: parse_setting(name, text) for name, text in wanted.items()}
        return own | {name: SETTINGS[name].format(value) for name, value in values.items()}
