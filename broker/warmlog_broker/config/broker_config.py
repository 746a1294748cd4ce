"""The configuration of a broker: its settings as users give them.

A setting comes from a TOML file, an environment variable or the command line; the later of these takes precedence.
`flush.threads` is `flush.threads = 4` (or a table `[flush]` with `threads = 4`), `WARMLOG_FLUSH_THREADS=4` and
`--set flush.threads=4`. A topic setting (storage/config.py) given to the broker is the default of its topics. Unknown
settings are refused.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from warmlog_broker.config.broker_settings import BrokerSettings
from warmlog_broker.config.consistency import check_consistency
from warmlog_broker.storage.config import TOPIC_SETTINGS, LogConfig, SettingValue
from warmlog_protocol.errors import InvalidConfig, NeedsRestart, did_you_mean

HIDDEN = "(hidden)"
NONE: Mapping[str, str] = {}
_SECRET_ENDINGS = ("password", "secret", "token")


class Origin(StrEnum):
    """Where the value of a setting comes from; a later one takes precedence."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"
    ALTERED_FOR_ALL = "altered for all"
    """By a request to a running broker of a cluster, for all of its brokers."""
    ALTERED = "altered"
    """By a request to the running broker."""


class Given(Struct, frozen=True):
    text: str
    origin: Origin
    place: str = ""
    """What an operator looks for: the file, or the environment's variable."""


def shown(name: str, text: str) -> str:
    """Return the value of a setting for people and logs: hidden if the name says that it is a secret.

    No setting is one today, passwords are in files; but a file may have `sasl.password`, which is none.
    """
    return HIDDEN if name.lower().replace("_", ".").endswith(_SECRET_ENDINGS) else text


class BrokerConfig(BrokerSettings, frozen=True, kw_only=True):
    """The settings of one broker process. The constructor checks nothing; `from_settings` checks users' text."""

    topic_settings: Mapping[str, str] = field(default_factory=dict)
    """Topic settings given to the broker, as users write them: the defaults of its topics."""
    given: Mapping[str, Given] = field(default_factory=dict)
    """Where the settings that were given come from, by name; empty if that is not known."""
    retired: tuple[str, ...] = ()
    """The settings among those given that have no effect any more: the log names them at the start."""
    ignored_variables: tuple[str, ...] = ()
    """Environment variables WARMLOG_… that are not settings (`sources`): the log names them at the start."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """Return the defaults with users' `settings` applied; InvalidConfig for the first bad one."""
        retired = tuple(name for name in settings if name in RETIRED)
        values = {name: parse_setting(name, text) for name, text in settings.items() if name not in retired}
        topic_settings = {name: settings[name] for name in values if name in _TOPIC_NAMES}
        LogConfig.from_settings(topic_settings)
        values = {SETTINGS[name].attribute: value for name, value in values.items() if name not in topic_settings}
        config = cls(**values, topic_settings=topic_settings, retired=retired)  # type: ignore[arg-type]
        check_consistency(config, settings)
        return config

    def changed_settings(self) -> dict[str, str]:
        """Return the settings that differ from their defaults, and those given for topics, as users write them."""
        defaults = type(self)().to_settings()
        changed = {name: shown(name, text) for name, text in self.to_settings().items() if text != defaults[name]}
        return changed | dict(self.topic_settings)

    def to_settings(self) -> dict[str, str]:
        """Return every setting of the broker by name, as users write it."""
        return {setting.name: setting.format(getattr(self, setting.attribute)) for setting in BROKER_SETTINGS}

    def sources(self) -> dict[str, Given]:
        """Return where the value of each setting comes from; without those for which that is not known."""
        changed = self.changed_settings()
        defaults = {name: Given("", Origin.DEFAULT) for name in SETTINGS if name not in changed}
        return defaults | dict(self.given)

    def altered(self, own: Mapping[str, str], of_all: Mapping[str, str] = NONE) -> Self:
        """Return these settings with those that were altered while running, the broker's own and those of all brokers.

        InvalidConfig, NeedsRestart.
        """
        given = {name: Given(text, Origin.ALTERED_FOR_ALL) for name, text in of_all.items()}
        given |= {name: Given(text, Origin.ALTERED) for name, text in own.items()}
        own = {**of_all, **own}
        for name, text in own.items():
            parse_setting(name, text)
            if not SETTINGS[name].is_dynamic:
                raise NeedsRestart(
                    f"{name} cannot be altered while the broker runs, it needs a restart: set it in the file, the "
                    "environment or the command line that the broker is started with"
                )
        topic_settings = {**self.topic_settings, **{name: own[name] for name in own if name in _TOPIC_NAMES}}
        LogConfig.from_settings(topic_settings)
        values = {SETTINGS[name].attribute: parse_setting(name, own[name]) for name in own if name not in _TOPIC_NAMES}
        config = replace(self, **values, topic_settings=topic_settings, given={**self.given, **given})
        check_consistency(config, {})
        return config

    def take(self, other: Self) -> None:
        """Take over the dynamic settings of `other`: the one way in which a configuration that is in use changes.

        All parts of a broker have the same object, and see them at their next use.
        """
        for setting in BROKER_SETTINGS:
            if setting.is_dynamic:
                force_setattr(self, setting.attribute, getattr(other, setting.attribute))
        force_setattr(self, "topic_settings", other.topic_settings)
        force_setattr(self, "given", other.given)

    @property
    def topic_defaults(self) -> LogConfig:
        """The configuration of a topic without settings of its own."""
        return LogConfig.from_settings(self.topic_settings)


BROKER_SETTINGS = BrokerSettings.rows
_TOPIC_NAMES = frozenset(setting.name for setting in TOPIC_SETTINGS)
SETTINGS = {setting.name: setting for setting in (*BROKER_SETTINGS, *TOPIC_SETTINGS)}
"""By name: those of the broker, and those of topics, whose defaults the broker may be given."""


RETIRED = frozenset(
    {
        "fetch.max.wait.partitions",
        "fetch.max.waits",
        "index.warm.interval.ms",
        "offsets.retention.check.interval.ms",
        "producer.id.block.size",
        "producer.id.expiration.check.interval.ms",
        "receive.buffer.bytes",
        "request.receive.timeout.ms",
        "send.stall.timeout.ms",
        "stall.min.bytes.per.second",
        "stall.timeout.ms",
        "tls.max.handshakes",
    }
)
"""Settings of 0.1 that are constants now. A broker that is given one starts, with a warning, until 0.3."""


def parse_setting(name: str, text: str) -> SettingValue:
    """Return the value that `text` means; InvalidConfig for an unknown name, with the nearest one, or a bad value."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise unknown_setting(name)
    if setting.kind != "text" or setting.choices:
        return setting.parse(text)
    try:
        is_allowed = b"\0" not in text.encode()
    except UnicodeEncodeError:
        is_allowed = False
    if not is_allowed:
        raise InvalidConfig(f"{name}: {text!r} is not allowed, it must be UTF-8 text without zero bytes")
    return text


def unknown_setting(name: str) -> InvalidConfig:
    """Return the error for a name that no setting has; it suggests the nearest one."""
    return InvalidConfig(f"{name!r} is not a setting of the broker or of a topic{did_you_mean(name, SETTINGS)}")
