"""Changes settings of the broker while it runs: those that are dynamic, and the defaults of topics.

A change is in the metadata log before it takes effect, and in force when the response is sent. It takes precedence over
what the broker was started with, also after a restart. In a cluster, settings of all brokers are facts of the cluster,
which each broker follows, and over which its own take precedence.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from warmlog_broker.config.broker_config import SETTINGS, BrokerConfig, Origin, parse_setting, shown, unknown_setting
from warmlog_broker.metadata.metadata_log import BrokerAltered
from warmlog_broker.metadata.store import ClusterStore, NodeStore, Version, retried
from warmlog_broker.topics.topic_changes import TopicChanges
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import InvalidConfig, InvalidRequest, NeedsRestart
from warmlog_protocol.messages import AlterBrokerConfigRequest

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


def in_force(started: BrokerConfig, own: Mapping[str, str], of_all: Mapping[str, str]) -> BrokerConfig:
    """Return the settings of a start with those altered that are valid over them: of all brokers, and its own."""
    valid = still_valid(started, {**of_all, **own})
    own = {name: text for name, text in valid.items() if name in own}
    return started.altered(own, {name: text for name, text in valid.items() if name not in own})


class BrokerChanges:
    """The settings of one broker, altered while it runs."""

    def __init__(
        self,
        config: BrokerConfig,
        started: BrokerConfig,
        *,
        topics: Topics,
        topic_changes: TopicChanges,
        cluster: ClusterStore,
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
        self._cluster = cluster
        self._node = node

    @property
    def of_all(self) -> Mapping[str, str]:
        """The altered settings of all brokers, as this one knows them."""
        return self._own if self._cluster.is_alone else self._cluster.state.settings_of_all

    async def alter(self, wanted: AlterBrokerConfigRequest, *, by: str) -> dict[str, str]:
        """Change settings durably, all or none; return all that are altered then. `by` is the principal, for the log.

        InvalidConfig, InvalidRequest, NeedsRestart, StorageError.
        """
        async with self._topics.changing:
            return await retried(self._cluster, partial(self._alter, wanted, by))

    async def _alter(self, wanted: AlterBrokerConfigRequest, by: str, version: Version) -> dict[str, str]:
        is_of_all = wanted.of_all and not self._cluster.is_alone
        own, of_all = self._own, self._cluster.state.settings_of_all
        if is_of_all:
            altered = of_all = _after(of_all, wanted)
        else:
            altered = own = _after(own, wanted)
            of_all = still_valid(self._started, of_all)
        config = self._started.altered(own, of_all)
        if config.topic_defaults != self._config.topic_defaults:
            await self._topic_changes.check_defaults(config.topic_defaults)
        known = self._cluster.state.settings_of_all if is_of_all else self._node.state.broker_settings
        if not wanted.validate_only and altered != known:
            if is_of_all:
                await self._cluster.commit([BrokerAltered(altered)], expected=version)
            else:
                await self._node.commit([BrokerAltered(altered)])
                self._own = own
            await self._take(config)
            changes = [f"{name}={shown(name, text)}" for name, text in wanted.set.items()]
            changes += [f"{name} as before" for name in wanted.unset]
            whose = "all brokers" if is_of_all else "the broker"
            _log.info("%s has altered settings of %s: %s", by, whose, ", ".join(changes))
        return altered

    async def follow(self) -> None:
        """Put in force what the cluster has of all brokers. `Topics.changing` must be held."""
        config = in_force(self._started, self._own, self._cluster.state.settings_of_all)
        if config.given != self._config.given:
            await self._topic_changes.check_defaults(config.topic_defaults)
            await self._take(config)
            _log.info("settings of all brokers are as the cluster has them: %s", self.of_all or "none")

    async def _take(self, config: BrokerConfig) -> None:
        has_other_defaults = config.topic_defaults != self._config.topic_defaults
        self._config.take(config)
        if has_other_defaults:
            await self._topic_changes.put_in_force([topic.entry for topic in self._topics])
        for on_altered in self.on_altered:
            on_altered()


def _after(own: Mapping[str, str], wanted: AlterBrokerConfigRequest) -> dict[str, str]:
    """Return altered settings after a change. InvalidConfig, InvalidRequest."""
    if not wanted.set and not wanted.unset:
        raise InvalidRequest("no setting to alter: name one to set, or to unset")
    for name in wanted.unset:
        if name in wanted.set:
            raise InvalidRequest(f"{name} is both set and unset: give it once")
        if name not in SETTINGS:
            raise unknown_setting(name)
    # In the form that every version reads: 7d is 604800000.
    values = {name: parse_setting(name, text) for name, text in wanted.set.items()}
    kept = {name: text for name, text in own.items() if name not in wanted.unset}
    return kept | {name: SETTINGS[name].format(value) for name, value in values.items()}
