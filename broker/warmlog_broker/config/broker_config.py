"""The broker's settings: one table that says what each is called, what it may be, and what it does.

A setting is given, from weakest to strongest, by a TOML file, by an environment variable or on the command line:
`flush.threads` is `flush.threads = 4` (or a table `[flush]` with `threads = 4`), `WARMLOG_FLUSH_THREADS=4` and
`--set flush.threads=4`. A topic setting (log/config.py) given to the broker is the default of every topic that does
not set it itself. What is not known is refused.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from warmlog_broker.storage.config import (
    MAX_INT32,
    TOPIC_SETTINGS,
    UNLIMITED,
    LogConfig,
    Setting,
    SettingValue,
    setting,
    settings_of,
)
from warmlog_broker.storage.index.search import WARM_BYTES
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from warmlog_protocol.errors import InvalidConfig
from warmlog_protocol.wire.connection import DEFAULT_MAX_ITEMS
from warmlog_protocol.wire.frames import MAX_HEADER_BYTES

KIB, MIB = 1024, 1024 * 1024
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1000, 60_000, 3_600_000, 86_400_000


def _integer(default: int, unit: str, sentence: str, *, minimum: int = 1, maximum: int = MAX_INT32) -> Any:
    return setting(default, sentence, unit=unit, minimum=minimum, maximum=maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker process. Built directly it checks nothing; users' text is for `from_settings`."""

    data_dir: str = setting("", "The directory that holds everything; created when it is missing.")
    data_dirs: str = setting(
        "",
        "In place of data.dir: several directories joined by commas, one for each disk. New partitions go where the "
        "fewest are; the first directory holds metadata.log as well.",
    )
    listen: str = setting("127.0.0.1:7400", "HOST:PORT to accept connections at; port 0 takes a free one.")
    node_id: int = _integer(
        1, "", "This broker's number; a data directory keeps the one that it was made with.", minimum=0
    )
    # connections
    max_connections: int = _integer(8192, "connections", "How many connections are held at once.")
    max_connections_per_ip: int = _integer(8192, "connections", "How many of them one address may hold.")
    handshake_timeout_ms: int = _integer(
        10 * SECOND_MS, "ms", "A connection that has not said who it is by then is closed."
    )
    request_receive_timeout_ms: int = _integer(
        MINUTE_MS,
        "ms",
        "A connection whose request has not come whole this long after it began is closed: it holds memory.",
    )
    connections_max_idle_ms: int = _integer(
        10 * MINUTE_MS, "ms", "A connection without requests for this long is closed."
    )
    send_stall_timeout_ms: int = _integer(
        2 * MINUTE_MS, "ms", "A connection that takes nothing of what it was answered for this long is closed."
    )
    max_in_flight_requests: int = _integer(
        64, "requests", "Unanswered requests of a connection; beyond, it is not read."
    )
    # memory
    socket_request_max_bytes: int = _integer(100 * MIB, "bytes", "The largest frame that is taken.", minimum=64 * KIB)
    request_header_max_bytes: int = _integer(
        MIB, "bytes", "The largest request without its batches.", minimum=64 * KIB, maximum=MAX_HEADER_BYTES
    )
    request_max_items: int = _integer(DEFAULT_MAX_ITEMS, "items", "How many topics or partitions one request may name.")
    queued_max_request_bytes: int = _integer(
        256 * MIB,
        "bytes",
        "Memory for requests that are being received or looked at, over all connections; who finds none left waits. "
        "socket.request.max.bytes of it are for whoever has waited longest. A large batch that is opened for a request "
        "takes its share too, one at a time, if need be beyond this limit.",
        minimum=64 * KIB,
        maximum=2**40,
    )
    queued_max_response_bytes: int = _integer(
        256 * MIB,
        "bytes",
        "Memory for answers that wait for their readers, over all connections; beyond, who has not been sent "
        "everything is answered nothing more.",
        minimum=MIB,
        maximum=2**40,
    )
    stall_timeout_ms: int = _integer(
        SECOND_MS,
        "ms",
        "While others wait for memory, a connection that holds some is closed when it stalls for this long.",
    )
    stall_min_bytes_per_second: int = _integer(
        64 * KIB, "bytes/s", "What moves slower than this, on average over stall.timeout.ms, stalls."
    )
    batch_max_decompressed_bytes: int = _integer(
        DEFAULT_MAX_DECOMPRESSED_BYTES,
        "bytes",
        "The most that one batch may grow to where the broker opens it: on compacted topics and for their compaction, "
        "for compression.type, and for lookups by time.",
        minimum=MIB,
        maximum=DEFAULT_MAX_DECOMPRESSED_BYTES,
    )
    receive_buffer_bytes: int = _integer(
        MIB,
        "bytes",
        "The receive buffer of a busy connection; an idle one has 8 KiB.",
        minimum=64 * KIB,
        maximum=64 * MIB,
    )
    send_queue_bytes: int = _integer(
        64 * MIB,
        "bytes",
        "Answers of a connection that wait for its reader, file ranges included; beyond, its requests wait.",
        minimum=64 * KIB,
    )
    # fetch
    fetch_max_bytes: int = _integer(55 * MIB, "bytes", "The most that one Fetch is answered with.", minimum=KIB)
    fetch_max_wait_ms: int = _integer(5 * MINUTE_MS, "ms", "The longest that a Fetch may wait for data.", minimum=0)
    fetch_max_waits: int = _integer(16_384, "requests", "Fetches that wait for data, over all connections.")
    fetch_max_wait_partitions: int = _integer(262_144, "partitions", "How many partitions all of these wait for.")
    fetch_sendfile_enable: bool = setting(True, "Whether data goes from file to socket by sendfile, not by copies.")
    cold_read_threads: int = _integer(4, "threads", "Threads that read what is not in the page cache.", maximum=256)
    # disk
    flush_threads: int = _integer(4, "threads", "Threads that flush the files of one group commit.", maximum=256)
    flush_syncfs_files: int = _integer(
        24,
        "files",
        "From this many files on, a group commit flushes the whole file system at once; 0: never.",
        minimum=0,
    )
    disk_reserve_bytes: int = _integer(
        128 * MIB,
        "bytes",
        "With less room than this on its disk a data directory takes no records and no new partitions; reading, "
        "deleting and retention go on, and use it.",
        minimum=0,
        maximum=2**40,
    )
    num_recovery_threads: int = _integer(
        4, "threads", "Threads, for each data directory, that check partitions at start.", maximum=256
    )
    max_open_files: int = _integer(
        8192, "files", "Segment and index files that are open or mapped at once.", minimum=64
    )
    log_flush_offset_checkpoint_interval_ms: int = _integer(
        SECOND_MS, "ms", "How soon after a flush its recovery points are written down."
    )
    index_warm_bytes: int = _integer(
        WARM_BYTES,
        "bytes",
        "The end of each active index that is kept in memory, so that lookups in idle topics are fast, too; 0: off.",
        minimum=0,
        maximum=64 * MIB,
    )
    index_warm_interval_ms: int = _integer(5 * SECOND_MS, "ms", "How often these bytes are read.")
    index_warm_max_bytes: int = _integer(
        256 * MIB, "bytes", "The most that is kept in memory that way, over all indexes.", minimum=0, maximum=2**40
    )
    log_dir_move_bytes_per_second: int = _integer(
        64 * MIB,
        "bytes/s",
        "How fast each partition is copied that moves from one data directory to another.",
        minimum=64 * KIB,
        maximum=2**40,
    )
    # topics
    num_partitions: int = _integer(1, "partitions", "Partitions of a new topic that does not say how many.")
    max_partitions_per_topic: int = _integer(1000, "partitions", "The most partitions that one topic may have.")
    max_partitions: int = _integer(10_000, "partitions", "The most partitions that this broker holds.")
    producer_id_block_size: int = _integer(
        1000, "producer ids", "How many producer ids are reserved on disk at a time."
    )
    max_producer_ids_per_partition: int = _integer(
        10_000,
        "producer ids",
        "How many idempotent producers a partition remembers; the one that was seen longest ago is forgotten first.",
        minimum=100,
    )
    producer_id_expiration_ms: int = _integer(
        DAY_MS, "ms", "A partition forgets an idempotent producer that has not written to it for this long."
    )
    producer_id_expiration_check_interval_ms: int = _integer(
        10 * MINUTE_MS, "ms", "How often idle producers are looked for."
    )
    log_retention_check_interval_ms: int = _integer(
        5 * MINUTE_MS, "ms", "How often old segments are looked for, and idle ones rolled that segment.ms has closed."
    )
    log_retention_clock_settle_ms: int = _integer(
        HOUR_MS,
        "ms",
        "How long a clock that has jumped ahead must go on before anything is given up by it; 0: believed at once.",
        minimum=0,
    )
    # compaction
    log_cleaner_threads: int = _integer(
        1,
        "threads",
        "Threads that compact topics with cleanup.policy=compact; 0: none is compacted.",
        minimum=0,
        maximum=64,
    )
    log_cleaner_dedupe_buffer_size: int = _integer(
        128 * MIB,
        "bytes",
        "Memory for the keys of one pass, over all threads; a key takes 208 bytes. What does not fit takes another.",
        minimum=MIB,
        maximum=2**40,
    )
    log_cleaner_io_max_bytes_per_second: int = _integer(
        UNLIMITED,
        "bytes/s",
        "How fast compaction may read and write, over all threads.",
        minimum=UNLIMITED,
        maximum=2**40,
    )
    log_cleaner_backoff_ms: int = _integer(
        15 * SECOND_MS, "ms", "How long compaction rests when no log needs it.", minimum=1
    )
    # crashes
    crash_loop_limit: int = _integer(
        5,
        "starts",
        "After so many starts within crash.loop.window.ms that crashed before they served, or in their first seconds, "
        "the broker starts in safe mode: it can be read, and takes no records; 0: never.",
        minimum=0,
        maximum=20,
    )
    crash_loop_window_ms: int = _integer(
        HOUR_MS, "ms", "How long a crash counts, and how long safe mode lasts if nobody stops the broker."
    )
    # stop
    shutdown_drain_ms: int = _integer(
        10 * SECOND_MS, "ms", "How long a stop waits for requests that are under way.", minimum=0
    )
    shutdown_disk_ms: int = _integer(
        MINUTE_MS,
        "ms",
        "How long a stop waits after that for the disks. Beyond, the broker ends as by a crash: what was acknowledged "
        "stays, and the next start checks the logs.",
    )
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


BROKER_SETTINGS = settings_of(BrokerConfig)
_BY_NAME = {setting.name: setting for setting in BROKER_SETTINGS}
_TOPIC_NAMES = frozenset(setting.name for setting in TOPIC_SETTINGS)


def _check_data_paths(config: BrokerConfig) -> None:
    """InvalidConfig unless there is one directory at least, and none is given twice or lies within another."""
    if config.data_dir and config.data_dirs:
        raise InvalidConfig(
            f"data.dir ({config.data_dir}) and data.dirs ({config.data_dirs}) are both set: leave one of them out"
        )
    if not config.data_paths:
        raise InvalidConfig("data.dir is not set: the broker needs a directory to keep its data in")
    resolved = [Path(os.path.realpath(path)) for path in config.data_paths]  # resolve() may raise for links in a circle
    for number, path in enumerate(resolved):
        for other in resolved[:number]:
            if path == other:
                raise InvalidConfig(f"data.dirs: {path} is given twice")
            if path.is_relative_to(other) or other.is_relative_to(path):
                raise InvalidConfig(f"data.dirs: {path} and {other} lie one within the other")


def _parse(setting: Setting, text: str) -> SettingValue:
    if setting.kind != "text" or setting.choices:
        return setting.parse(text)
    try:
        is_allowed = b"\0" not in text.encode()
    except UnicodeEncodeError:
        is_allowed = False
    if not is_allowed:
        raise InvalidConfig(f"{setting.name}: {text!r} is not allowed, it must be UTF-8 text without zero bytes")
    return text


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
