"""The broker's settings: one table that says what each is called, what it may be, and what it does.

A setting is given, from weakest to strongest, by a TOML file, by an environment variable or on the command line:
`flush.threads` is `flush.threads = 4` (or a table `[flush]` with `threads = 4`), `WARMLOG_FLUSH_THREADS=4` and
`--set flush.threads=4`. A topic setting (log/config.py) given to the broker is the default of every topic that does
not set it itself. What is not known is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from warmlog_broker.log.config import MAX_INT32, TOPIC_SETTINGS, UNLIMITED, LogConfig, Setting, SettingValue
from warmlog_broker.log.index_search import WARM_BYTES
from warmlog_protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from warmlog_protocol.connection import DEFAULT_MAX_ITEMS
from warmlog_protocol.errors import InvalidConfig
from warmlog_protocol.frames import MAX_HEADER_BYTES

KIB, MIB = 1024, 1024 * 1024
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1000, 60_000, 3_600_000, 86_400_000


def _integer(
    name: str, default: int, unit: str, sentence: str, *, minimum: int = 1, maximum: int = MAX_INT32
) -> Setting:
    return Setting(name, "integer", default, sentence, unit=unit, minimum=minimum, maximum=maximum)


BROKER_SETTINGS: tuple[Setting, ...] = (
    Setting("data.dir", "text", "", "The directory that holds everything; created when it is missing."),
    Setting(
        "data.dirs",
        "text",
        "",
        "In place of data.dir: several directories joined by commas, one for each disk. New partitions go where the "
        "fewest are; the first directory holds metadata.log as well.",
    ),
    Setting("listen", "text", "127.0.0.1:7400", "HOST:PORT to accept connections at; port 0 takes a free one."),
    _integer(
        "node.id", 1, "", "This broker's number; a data directory keeps the one that it was made with.", minimum=0
    ),
    # connections
    _integer("max.connections", 8192, "connections", "How many connections are held at once."),
    _integer("max.connections.per.ip", 8192, "connections", "How many of them one address may hold."),
    _integer(
        "handshake.timeout.ms", 10 * SECOND_MS, "ms", "A connection that has not said who it is by then is closed."
    ),
    _integer(
        "request.receive.timeout.ms",
        MINUTE_MS,
        "ms",
        "A connection whose request has not come whole this long after it began is closed: it holds memory.",
    ),
    _integer("connections.max.idle.ms", 10 * MINUTE_MS, "ms", "A connection without requests for this long is closed."),
    _integer(
        "send.stall.timeout.ms",
        2 * MINUTE_MS,
        "ms",
        "A connection that takes nothing of what it was answered for this long is closed.",
    ),
    _integer("max.in.flight.requests", 64, "requests", "Unanswered requests of a connection; beyond, it is not read."),
    # memory
    _integer("socket.request.max.bytes", 100 * MIB, "bytes", "The largest frame that is taken.", minimum=64 * KIB),
    _integer(
        "request.header.max.bytes",
        MIB,
        "bytes",
        "The largest request without its batches.",
        minimum=64 * KIB,
        maximum=MAX_HEADER_BYTES,
    ),
    _integer("request.max.items", DEFAULT_MAX_ITEMS, "items", "How many topics or partitions one request may name."),
    _integer(
        "queued.max.request.bytes",
        256 * MIB,
        "bytes",
        "Memory for requests that are being received or looked at, over all connections; who finds none left waits. "
        "socket.request.max.bytes of it are for whoever has waited longest. A large batch that is opened for a request "
        "takes its share too, one at a time, if need be beyond this limit.",
        minimum=64 * KIB,
        maximum=2**40,
    ),
    _integer(
        "queued.max.response.bytes",
        256 * MIB,
        "bytes",
        "Memory for answers that wait for their readers, over all connections; beyond, who has not been sent "
        "everything is answered nothing more.",
        minimum=MIB,
        maximum=2**40,
    ),
    _integer(
        "stall.timeout.ms",
        SECOND_MS,
        "ms",
        "While others wait for memory, a connection that holds some is closed when it stalls for this long.",
    ),
    _integer(
        "stall.min.bytes.per.second",
        64 * KIB,
        "bytes/s",
        "What moves slower than this, on average over stall.timeout.ms, stalls.",
    ),
    _integer(
        "batch.max.decompressed.bytes",
        DEFAULT_MAX_DECOMPRESSED_BYTES,
        "bytes",
        "The most that one batch may grow to where the broker opens it: on compacted topics and for their compaction, "
        "for compression.type, and for lookups by time.",
        minimum=MIB,
        maximum=DEFAULT_MAX_DECOMPRESSED_BYTES,
    ),
    _integer(
        "receive.buffer.bytes",
        MIB,
        "bytes",
        "The receive buffer of a busy connection; an idle one has 8 KiB.",
        minimum=64 * KIB,
        maximum=64 * MIB,
    ),
    _integer(
        "send.queue.bytes",
        64 * MIB,
        "bytes",
        "Answers of a connection that wait for its reader, file ranges included; beyond, its requests wait.",
        minimum=64 * KIB,
    ),
    # fetch
    _integer("fetch.max.bytes", 55 * MIB, "bytes", "The most that one Fetch is answered with.", minimum=KIB),
    _integer("fetch.max.wait.ms", 5 * MINUTE_MS, "ms", "The longest that a Fetch may wait for data.", minimum=0),
    _integer("fetch.max.waits", 16_384, "requests", "Fetches that wait for data, over all connections."),
    _integer("fetch.max.wait.partitions", 262_144, "partitions", "How many partitions all of these wait for."),
    Setting(
        "fetch.sendfile.enable", "boolean", True, "Whether data goes from file to socket by sendfile, not by copies."
    ),
    _integer("cold.read.threads", 4, "threads", "Threads that read what is not in the page cache.", maximum=256),
    # disk
    _integer("flush.threads", 4, "threads", "Threads that flush the files of one group commit.", maximum=256),
    _integer(
        "flush.syncfs.files",
        24,
        "files",
        "From this many files on, a group commit flushes the whole file system at once; 0: never.",
        minimum=0,
    ),
    _integer(
        "disk.reserve.bytes",
        128 * MIB,
        "bytes",
        "With less room than this on its disk a data directory takes no records and no new partitions; reading, "
        "deleting and retention go on, and use it.",
        minimum=0,
        maximum=2**40,
    ),
    _integer(
        "num.recovery.threads",
        4,
        "threads",
        "Threads, for each data directory, that check partitions at start.",
        maximum=256,
    ),
    _integer("max.open.files", 8192, "files", "Segment and index files that are open or mapped at once.", minimum=64),
    _integer(
        "log.flush.offset.checkpoint.interval.ms",
        SECOND_MS,
        "ms",
        "How soon after a flush its recovery points are written down.",
    ),
    _integer(
        "index.warm.bytes",
        WARM_BYTES,
        "bytes",
        "The end of each active index that is kept in memory, so that lookups in idle topics are fast, too; 0: off.",
        minimum=0,
        maximum=64 * MIB,
    ),
    _integer("index.warm.interval.ms", 5 * SECOND_MS, "ms", "How often these bytes are read."),
    _integer(
        "index.warm.max.bytes",
        256 * MIB,
        "bytes",
        "The most that is kept in memory that way, over all indexes.",
        minimum=0,
        maximum=2**40,
    ),
    _integer(
        "log.dir.move.bytes.per.second",
        64 * MIB,
        "bytes/s",
        "How fast each partition is copied that moves from one data directory to another.",
        minimum=64 * KIB,
        maximum=2**40,
    ),
    # topics
    _integer("num.partitions", 1, "partitions", "Partitions of a new topic that does not say how many."),
    _integer("max.partitions.per.topic", 1000, "partitions", "The most partitions that one topic may have."),
    _integer("max.partitions", 10_000, "partitions", "The most partitions that this broker holds."),
    _integer("producer.id.block.size", 1000, "producer ids", "How many producer ids are reserved on disk at a time."),
    _integer(
        "max.producer.ids.per.partition",
        10_000,
        "producer ids",
        "How many idempotent producers a partition remembers; the one that was seen longest ago is forgotten first.",
        minimum=100,
    ),
    _integer(
        "producer.id.expiration.ms",
        DAY_MS,
        "ms",
        "A partition forgets an idempotent producer that has not written to it for this long.",
    ),
    _integer(
        "producer.id.expiration.check.interval.ms", 10 * MINUTE_MS, "ms", "How often idle producers are looked for."
    ),
    _integer(
        "log.retention.check.interval.ms",
        5 * MINUTE_MS,
        "ms",
        "How often old segments are looked for, and idle ones rolled that segment.ms has closed.",
    ),
    _integer(
        "log.retention.clock.settle.ms",
        HOUR_MS,
        "ms",
        "How long a clock that has jumped ahead must go on before anything is given up by it; 0: believed at once.",
        minimum=0,
    ),
    # compaction
    _integer(
        "log.cleaner.threads",
        1,
        "threads",
        "Threads that compact topics with cleanup.policy=compact; 0: none is compacted.",
        minimum=0,
        maximum=64,
    ),
    _integer(
        "log.cleaner.dedupe.buffer.size",
        128 * MIB,
        "bytes",
        "Memory for the keys of one pass, over all threads; a key takes 208 bytes. What does not fit takes another.",
        minimum=MIB,
        maximum=2**40,
    ),
    _integer(
        "log.cleaner.io.max.bytes.per.second",
        UNLIMITED,
        "bytes/s",
        "How fast compaction may read and write, over all threads.",
        minimum=UNLIMITED,
        maximum=2**40,
    ),
    _integer(
        "log.cleaner.backoff.ms", 15 * SECOND_MS, "ms", "How long compaction rests when no log needs it.", minimum=1
    ),
    # crashes
    _integer(
        "crash.loop.limit",
        5,
        "starts",
        "After so many starts within crash.loop.window.ms that have ended in a crash the broker starts in safe mode: "
        "it can be read, and takes no records; 0: never.",
        minimum=0,
        maximum=20,
    ),
    _integer(
        "crash.loop.window.ms",
        HOUR_MS,
        "ms",
        "How long a crash counts, and how long safe mode lasts if nobody stops the broker.",
    ),
    # stop
    _integer(
        "shutdown.drain.ms", 10 * SECOND_MS, "ms", "How long a stop waits for requests that are under way.", minimum=0
    ),
    _integer(
        "shutdown.disk.ms",
        MINUTE_MS,
        "ms",
        "How long a stop waits after that for the disks. Beyond, the broker ends as by a crash: what was acknowledged "
        "stays, and the next start checks the logs.",
    ),
)

_BY_NAME: dict[str, Setting] = {setting.name: setting for setting in BROKER_SETTINGS}
_TOPIC_NAMES = frozenset(setting.name for setting in TOPIC_SETTINGS)


def _default(name: str) -> Any:
    return _BY_NAME[name].default


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker process. Built directly it checks nothing; users' text is for `from_settings`."""

    data_dir: str = _default("data.dir")
    data_dirs: str = _default("data.dirs")
    listen: str = _default("listen")
    node_id: int = _default("node.id")
    max_connections: int = _default("max.connections")
    max_connections_per_ip: int = _default("max.connections.per.ip")
    handshake_timeout_ms: int = _default("handshake.timeout.ms")
    request_receive_timeout_ms: int = _default("request.receive.timeout.ms")
    connections_max_idle_ms: int = _default("connections.max.idle.ms")
    send_stall_timeout_ms: int = _default("send.stall.timeout.ms")
    max_in_flight_requests: int = _default("max.in.flight.requests")
    socket_request_max_bytes: int = _default("socket.request.max.bytes")
    request_header_max_bytes: int = _default("request.header.max.bytes")
    request_max_items: int = _default("request.max.items")
    queued_max_request_bytes: int = _default("queued.max.request.bytes")
    queued_max_response_bytes: int = _default("queued.max.response.bytes")
    stall_timeout_ms: int = _default("stall.timeout.ms")
    stall_min_bytes_per_second: int = _default("stall.min.bytes.per.second")
    batch_max_decompressed_bytes: int = _default("batch.max.decompressed.bytes")
    receive_buffer_bytes: int = _default("receive.buffer.bytes")
    send_queue_bytes: int = _default("send.queue.bytes")
    fetch_max_bytes: int = _default("fetch.max.bytes")
    fetch_max_wait_ms: int = _default("fetch.max.wait.ms")
    fetch_max_waits: int = _default("fetch.max.waits")
    fetch_max_wait_partitions: int = _default("fetch.max.wait.partitions")
    fetch_sendfile_enable: bool = _default("fetch.sendfile.enable")
    cold_read_threads: int = _default("cold.read.threads")
    flush_threads: int = _default("flush.threads")
    flush_syncfs_files: int = _default("flush.syncfs.files")
    disk_reserve_bytes: int = _default("disk.reserve.bytes")
    num_recovery_threads: int = _default("num.recovery.threads")
    max_open_files: int = _default("max.open.files")
    log_flush_offset_checkpoint_interval_ms: int = _default("log.flush.offset.checkpoint.interval.ms")
    index_warm_bytes: int = _default("index.warm.bytes")
    index_warm_interval_ms: int = _default("index.warm.interval.ms")
    index_warm_max_bytes: int = _default("index.warm.max.bytes")
    log_dir_move_bytes_per_second: int = _default("log.dir.move.bytes.per.second")
    num_partitions: int = _default("num.partitions")
    max_partitions_per_topic: int = _default("max.partitions.per.topic")
    max_partitions: int = _default("max.partitions")
    producer_id_block_size: int = _default("producer.id.block.size")
    max_producer_ids_per_partition: int = _default("max.producer.ids.per.partition")
    producer_id_expiration_ms: int = _default("producer.id.expiration.ms")
    producer_id_expiration_check_interval_ms: int = _default("producer.id.expiration.check.interval.ms")
    log_retention_check_interval_ms: int = _default("log.retention.check.interval.ms")
    log_retention_clock_settle_ms: int = _default("log.retention.clock.settle.ms")
    log_cleaner_threads: int = _default("log.cleaner.threads")
    log_cleaner_dedupe_buffer_size: int = _default("log.cleaner.dedupe.buffer.size")
    log_cleaner_io_max_bytes_per_second: int = _default("log.cleaner.io.max.bytes.per.second")
    log_cleaner_backoff_ms: int = _default("log.cleaner.backoff.ms")
    crash_loop_limit: int = _default("crash.loop.limit")
    crash_loop_window_ms: int = _default("crash.loop.window.ms")
    shutdown_drain_ms: int = _default("shutdown.drain.ms")
    shutdown_disk_ms: int = _default("shutdown.disk.ms")
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    """Topic settings that were given to the broker, as users write them."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """The defaults with users' `settings` put over them; InvalidConfig for the first bad one."""
        topic_settings = {name: text for name, text in settings.items() if name in _TOPIC_NAMES}
        values = {
            setting_named(name).attribute: _parse(_BY_NAME[name], text)
            for name, text in settings.items()
            if name not in topic_settings
        }
        LogConfig.from_settings(topic_settings)
        config = cls(**values, topic_settings=topic_settings)  # type: ignore[arg-type]
        config._check()
        return config

    def to_settings(self) -> dict[str, str]:
        """Every setting of the broker by its name, as users write it."""
        return {setting.name: setting.format(getattr(self, setting.attribute)) for setting in BROKER_SETTINGS}

    @property
    def topic_defaults(self) -> LogConfig:
        """What a topic has that sets nothing itself."""
        return LogConfig.from_settings(self.topic_settings)

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The data directories, the one with the metadata log first."""
        if self.data_dir:
            return (Path(self.data_dir),)
        return tuple(Path(name.strip()) for name in self.data_dirs.split(",") if name.strip())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`."""
        return parse_address(self.listen)

    def _check(self) -> None:
        """InvalidConfig where settings do not fit together."""
        _check_data_paths(self)
        parse_address(self.listen)
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise InvalidConfig(
                f"queued.max.request.bytes: {self.queued_max_request_bytes} is not allowed, "
                f"one frame may take socket.request.max.bytes = {self.socket_request_max_bytes}"
            )
        if self.log_cleaner_io_max_bytes_per_second == 0:
            raise InvalidConfig("log.cleaner.io.max.bytes.per.second: 0 is not allowed, -1 stands for no limit")
        if self.num_partitions > self.max_partitions_per_topic:
            raise InvalidConfig(
                f"num.partitions: {self.num_partitions} is not allowed, "
                f"max.partitions.per.topic is {self.max_partitions_per_topic}"
            )


def _check_data_paths(config: BrokerConfig) -> None:
    """InvalidConfig unless there is one directory at least, and none is given twice or lies within another."""
    if config.data_dir and config.data_dirs:
        raise InvalidConfig(
            f"data.dir ({config.data_dir}) and data.dirs ({config.data_dirs}) are both set: leave one of them out"
        )
    if not config.data_paths:
        raise InvalidConfig("data.dir is not set: the broker needs a directory to keep its data in")
    resolved = [path.resolve() for path in config.data_paths]
    for number, path in enumerate(resolved):
        for other in resolved[:number]:
            if path == other:
                raise InvalidConfig(f"data.dirs: {path} is given twice")
            if path.is_relative_to(other) or other.is_relative_to(path):
                raise InvalidConfig(f"data.dirs: {path} and {other} lie one within the other")


def _parse(setting: Setting, text: str) -> SettingValue:
    is_free_text = setting.kind == "text" and not setting.choices
    return text if is_free_text else setting.parse(text)


def setting_named(name: str) -> Setting:
    """The row called `name`; InvalidConfig, with the nearest name that exists, when there is none."""
    setting = _BY_NAME.get(name)
    if setting is None:
        nearest = get_close_matches(name, [*_BY_NAME, *_TOPIC_NAMES], n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise InvalidConfig(f"{name!r} is not a setting of the broker or of a topic{hint}")
    return setting


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT"; InvalidConfig for anything else."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InvalidConfig(f"listen: {text!r} is not allowed, it must be HOST:PORT with a port from 0 to 65535")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def describe_broker_settings() -> str:
    """The table as Markdown, for the documentation."""
    lines = ["| setting | default | allowed | unit | what it does |", "|---|---|---|---|---|"]
    for setting in BROKER_SETTINGS:
        allowed = "" if setting.kind == "text" else setting.allowed
        default = setting.format(setting.default)
        lines.append(f"| `{setting.name}` | {default} | {allowed} | {setting.unit} | {setting.sentence} |")
    return "\n".join(lines) + "\n"


assert {row.name for row in fields(BrokerConfig)} == {s.attribute for s in BROKER_SETTINGS} | {"topic_settings"}
