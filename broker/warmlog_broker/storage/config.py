"""Topic settings: a table of names, values and descriptions.

The fields of `LogConfig` are the only definition of the settings. Users' text is checked against them, and a test
prints the documentation from them. Names and defaults are Kafka's, unless a description says otherwise.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from msgspec import Struct, StructMeta
from msgspec.structs import force_setattr, replace

from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import InvalidConfig, did_you_mean

UNLIMITED = -1
MAX_INT16 = 2**15 - 1
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

PRODUCER = "producer"
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"

SettingValue = int | float | bool | str

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_QUANTITY = re.compile(r"([0-9]{1,19})([A-Za-z]+)")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_BOOLEANS = {"true": True, "false": False}
_SIZES = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZES |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_FACTORS = {
    "ms": {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000},
    "bytes": _SIZES,
    "bytes/s": _SIZES,
}
"""The suffixes that a whole number may have, by the unit of its setting; in any case of letters."""
_EXAMPLES = {
    "ms": ", or a duration such as 7d, 12h, 90m, 30s or 250ms",
    "bytes": ", or a size such as 64KiB, 100MB or 1GiB",
    "bytes/s": ", or a size such as 64KiB, 100MB or 1GiB",
}
_KINDS: dict[type, Literal["integer", "number", "boolean", "text"]]
_KINDS = {int: "integer", float: "number", bool: "boolean", str: "text"}


class Setting(Struct, frozen=True):
    """One row of the table. Integers and numbers have inclusive bounds, texts and lists have choices."""

    name: str
    kind: Literal["integer", "number", "boolean", "text", "list"]
    default: SettingValue
    sentence: str
    unit: str = ""
    minimum: int = 0
    maximum: int = MAX_INT64
    choices: tuple[str, ...] = ()
    is_dynamic: bool = False
    """Whether it can be altered while the broker runs."""

    @property
    def attribute(self) -> str:
        """The field of LogConfig that holds it: `segment.bytes` is `segment_bytes`."""
        return self.name.replace(".", "_")

    @property
    def allowed(self) -> str:
        """The allowed values in words; empty for any text."""
        if self.kind == "boolean":
            return "true or false"
        if self.kind == "list":
            return f"one or more of {', '.join(self.choices)}, separated by commas"
        if self.kind == "text":
            return " or ".join(self.choices)
        if self.kind == "number":
            return f"a number from {self.minimum} to {self.maximum}"
        unlimited = " (-1: no limit)" if self.minimum == UNLIMITED else ""
        return f"a whole number from {self.minimum} to {self.maximum}{unlimited}"

    def parse(self, given: str) -> SettingValue:
        """Parse `given`, which may be a duration or a size if the unit is one of time or bytes.

        InvalidConfig names the setting, `given` and what is allowed.
        """
        text = given.strip()
        value: SettingValue | None = None
        if self.kind == "boolean":
            value = _BOOLEANS.get(text.lower())
        elif self.kind == "text":
            value = text if text in self.choices else None
        elif self.kind == "list":
            items = {item.strip() for item in text.split(",")}
            value = ",".join(sorted(items)) if items <= set(self.choices) else None
        elif self.kind == "number":
            value = float(text) if _NUMBER.fullmatch(text) and self.minimum <= float(text) <= self.maximum else None
        else:
            number = int(text) if _INTEGER.fullmatch(text) else None
            quantity = _QUANTITY.fullmatch(text)
            factor = quantity and _FACTORS.get(self.unit, {}).get(quantity[2].lower())
            if quantity and factor:
                number = int(quantity[1]) * factor
            value = number if number is not None and self.minimum <= number <= self.maximum else None
        if value is None:
            examples = _EXAMPLES.get(self.unit, "")
            raise InvalidConfig(f"{self.name}: {given!r} is not allowed, it must be {self.allowed}{examples}")
        return value

    def format(self, value: SettingValue) -> str:
        """Format `value` as users write it; the inverse of `parse`."""
        if self.kind == "number":
            return f"{value:g}"
        return str(value).lower() if self.kind == "boolean" else str(value)


def setting(
    default: SettingValue,
    sentence: str,
    *,
    kind: Literal["list"] | None = None,
    unit: str = "",
    minimum: int = 0,
    maximum: int = MAX_INT64,
    choices: tuple[str, ...] = (),
    is_dynamic: bool = False,
) -> Any:
    """A field of a settings class, and a row of its table (`SettingsClass`). The kind is that of the default, or a
    list."""
    return Setting("", kind or _KINDS[type(default)], default, sentence, unit, minimum, maximum, choices, is_dynamic)


class SettingsClass(StructMeta):
    """The class of settings classes: a field whose default is a `Setting` has the default of that instead."""

    rows: tuple[Setting, ...]
    """The table: a row for each such field, in order, whose name is the field's with dots."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "SettingsClass":
        rows = {attribute: each for attribute, each in namespace.items() if isinstance(each, Setting)}
        defaults = {attribute: row.default for attribute, row in rows.items()}
        created = super().__new__(cls, name, bases, namespace | defaults, **options)
        created.rows = tuple(replace(row, name=attribute.replace("_", ".")) for attribute, row in rows.items())
        return created


class LogConfig(Struct, metaclass=SettingsClass, frozen=True):
    """The settings of one topic, as the log uses them. Only `from_settings` validates."""

    cleanup_policy: str = setting(
        "delete",
        "What happens to old segments: delete removes them by retention.ms and retention.bytes, compact keeps the last "
        "value of each key, compact,delete does both.",
        kind="list",
        choices=("delete", "compact"),
    )
    compression_type: str = setting(
        PRODUCER,
        "How batches are compressed in the log: producer leaves them as they came, any other value recompresses them.",
        choices=(PRODUCER, "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "How long compaction keeps the deletion of a key (a record without a value) from the first pass that meets it: "
        "a reader must get through the log within this time.",
        unit="ms",
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "How long removed files stay on disk under a name ending in .deleted or -delete; counted by elapsed time, and "
        "over at a restart.",
        unit="ms",
    )
    flush_messages: int = setting(
        MAX_INT64,
        "A flush starts once this many records are unflushed; with write.caching it bounds what a power cut can lose.",
        unit="records",
        minimum=1,
    )
    flush_ms: int = setting(
        100,
        "Every append is flushed within this time, whatever its acks (Kafka's default is never).",
        unit="ms",
        maximum=86_400_000,
    )
    index_interval_bytes: int = setting(
        4096,
        "How many bytes of log are between two index entries: a smaller value makes lookups faster and indexes larger.",
        unit="bytes",
        maximum=MAX_INT32,
    )
    max_compaction_lag_ms: int = setting(
        MAX_INT64,
        "Records are compacted within this time after they were appended, whatever min.cleanable.dirty.ratio says.",
        unit="ms",
        minimum=1,
    )
    max_message_bytes: int = setting(
        1_048_588,
        "The largest record batch that is accepted, after compression.",
        unit="bytes",
        minimum=61,
        maximum=MAX_INT32,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        "Batches with a timestamp further than this ahead of the broker's clock are refused; CreateTime only.",
        unit="ms",
    )
    message_timestamp_before_max_ms: int = setting(
        MAX_INT64,
        "Batches with a timestamp further than this behind the broker's clock are refused; CreateTime only.",
        unit="ms",
    )
    message_timestamp_type: str = setting(
        CREATE_TIME,
        "The clock of record timestamps: CreateTime is the producer's, LogAppendTime the broker's.",
        choices=(CREATE_TIME, LOG_APPEND_TIME),
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "A log is compacted once more than this share of its closed segments has not been compacted yet.",
        minimum=0,
        maximum=1,
    )
    min_compaction_lag_ms: int = setting(0, "Records are not compacted for at least this long.", unit="ms")
    min_insync_replicas: int = setting(
        0,
        "How many replicas of a partition must have a record on disk before it is acknowledged (acks=all) and read; 0: "
        "a majority of them. Never more than it has, which is one without a cluster.",
        unit="replicas",
        maximum=MAX_INT16,
    )
    preallocate: bool = setting(False, "Whether the file of a new segment is created with its full size.")
    retention_bytes: int = setting(
        -1,
        "The oldest segments are removed while the others still have at least this size, for each partition.",
        unit="bytes",
        minimum=UNLIMITED,
    )
    retention_ms: int = setting(
        604_800_000, "Segments are removed once their newest record is older than this.", unit="ms", minimum=UNLIMITED
    )
    segment_bytes: int = setting(
        1_073_741_824,
        "A segment is closed and the next one begun before it grows beyond this size.",
        unit="bytes",
        minimum=1024,
        maximum=MAX_INT32,
    )
    segment_index_bytes: int = setting(
        10_485_760,
        "The largest size of an index file; a full index closes its segment.",
        unit="bytes",
        minimum=24,
        maximum=MAX_INT32,
    )
    segment_jitter_ms: int = setting(
        0,
        "At most this much, chosen at random for each segment, is taken off segment.ms, so that not all roll at once.",
        unit="ms",
    )
    segment_ms: int = setting(
        604_800_000,
        "A segment is closed and the next one begun once its first record is older than this.",
        unit="ms",
        minimum=1,
    )
    write_caching: bool = setting(
        False,
        "Whether acks=all is acknowledged before the flush: faster, but a power cut loses what flush.ms and "
        "flush.messages allow to be unflushed (Redpanda's setting).",
    )

    # What follows from the settings, computed once: each append asks for it.

    is_compacted: bool = False
    roll_ms: int = 0
    """The age at which a segment is closed, so that compaction can reach its records in time."""
    must_decode: bool = False
    """Whether the body of a batch must be decoded before it is appended."""
    takes_append_time: bool = False

    def __post_init__(self) -> None:
        derive = partial(force_setattr, self)  # the class is frozen
        is_compacted = "compact" in self.cleanup_policy
        derive("is_compacted", is_compacted)
        derive("roll_ms", min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms)
        derive("must_decode", is_compacted or self.compression_type != PRODUCER)
        derive("takes_append_time", self.message_timestamp_type == LOG_APPEND_TIME)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], *, base: "LogConfig | None" = None) -> "LogConfig":
        """Override `base` (or the defaults) with users' `settings`; InvalidConfig for the first bad one."""
        values = {setting_named(name).attribute: _BY_NAME[name].parse(text) for name, text in settings.items()}
        config = replace(base or cls(), **values)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms: {config.min_compaction_lag_ms} is not allowed, "
                f"max.compaction.lag.ms is {config.max_compaction_lag_ms}"
            )
        return config

    def to_settings(self) -> dict[str, str]:
        """Every setting by name, as users write it; the inverse of `from_settings`."""
        return {setting.name: setting.format(getattr(self, setting.attribute)) for setting in TOPIC_SETTINGS}

    @property
    def deletes(self) -> bool:
        """Whether old segments are removed by time and size."""
        return "delete" in self.cleanup_policy

    @property
    def codec(self) -> Codec | None:
        """The codec of batches in the log; None to leave them as they came."""
        if self.compression_type == PRODUCER:
            return None
        return Codec.NONE if self.compression_type == "uncompressed" else Codec.from_name(self.compression_type)


TOPIC_SETTINGS = tuple(replace(row, is_dynamic=True) for row in LogConfig.rows)
_BY_NAME = {setting.name: setting for setting in TOPIC_SETTINGS}


def setting_named(name: str) -> Setting:
    """The row of that name; InvalidConfig, with the nearest existing name, if there is none."""
    setting = _BY_NAME.get(name)
    if setting is None:
        raise InvalidConfig(f"{name!r} is not a topic setting{did_you_mean(name, _BY_NAME)}")
    return setting


def normalized(settings: Mapping[str, str]) -> dict[str, str]:
    """The same topic settings in the form that every version reads: `7d` is `604800000`. InvalidConfig as `parse`."""
    rows = {name: setting_named(name) for name in settings}
    return {name: row.format(row.parse(settings[name])) for name, row in rows.items()}
