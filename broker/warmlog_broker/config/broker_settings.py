"""The table of the broker's settings: name, default, bounds and meaning of each.

One that `is_dynamic` can be altered while the broker runs (`topics/broker_changes`): no part keeps a copy of its value,
or the part is told of a change.
"""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from warmlog_broker.config.listeners import Listener, parse_listeners, short_listeners
from warmlog_broker.storage.config import MAX_INT32, MAX_INT64, UNLIMITED, SettingsClass, setting
from warmlog_broker.storage.index.search import WARM_BYTES
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from warmlog_protocol.sasl.credential import MECHANISMS
from warmlog_protocol.wire.connection import DEFAULT_MAX_ITEMS
from warmlog_protocol.wire.frames import MAX_HEADER_BYTES

KIB, MIB, TIB = 1 << 10, 1 << 20, 1 << 40
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1000, 60_000, 3_600_000, 86_400_000


def _integer(
    default: int, unit: str, sentence: str, *, minimum: int = 1, maximum: int = MAX_INT32, is_dynamic: bool = False
) -> Any:
    return setting(default, sentence, unit=unit, minimum=minimum, maximum=maximum, is_dynamic=is_dynamic)


_ms = partial(setting, unit="ms", minimum=1, maximum=MAX_INT32)
_bytes = partial(setting, unit="bytes", maximum=MAX_INT32)
_threads = partial(setting, unit="threads", minimum=1, maximum=256)


class ClientAuth(StrEnum):
    """Whether a TLS listener asks its clients for certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class PrincipalRule(StrEnum):
    """What of the subject of a client's certificate is its principal: the common name, or the distinguished name."""

    CN = "cn"
    DN = "dn"


class LogFormat(StrEnum):
    """How the broker's log lines are written; AUTO is TEXT on a terminal, and JSON elsewhere."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class Authorization(StrEnum):
    """Whether requests need rights."""

    NONE = "none"
    ACL = "acl"


class BrokerSettings(Struct, metaclass=SettingsClass, frozen=True, kw_only=True):
    """The settings of one broker process, with their defaults: the fields of BrokerConfig, which has the methods."""

    data_dir: str = setting("", "The directory that holds everything; created if it is missing.")
    data_dirs: str = setting(
        "",
        "Instead of data.dir: several directories separated by commas, one for each disk. A new partition goes to the "
        "directory with the fewest; the first directory also holds metadata.log.",
    )
    listen: str = setting(
        "127.0.0.1:7400",
        "HOST:PORT to accept connections at; with port 0 the system chooses one. Short for "
        "listeners=default=plaintext://HOST:PORT.",
    )
    kafka_listen: str = setting(
        "",
        "HOST:PORT to accept clients of Kafka at; none by default. Short for kafka=kafka+plaintext://HOST:PORT in "
        "listeners.",
    )
    listeners: str = setting(
        "",
        "Instead of listen: NAME=PROTOCOL://HOST:PORT, several with commas between them. PROTOCOL is plaintext; ssl "
        "for TLS; sasl_plaintext or sasl_ssl for clients that authenticate by SCRAM; with kafka+ before it for clients "
        "of Kafka.",
    )
    advertised_listeners: str = setting(
        "",
        "NAME=HOST:PORT, several with commas between them: the addresses at which clients reach the listeners of these "
        "names; by default those that they connected to.",
    )
    allow_unauthenticated: bool = setting(
        False,
        "Whether clients without authentication may connect from other machines: each of them can read, write and "
        "delete everything.",
    )
    # TLS, on listeners whose protocol has it
    tls_cert_file: str = setting("", "A PEM file with the broker's certificate and those of its issuers after it.")
    tls_key_file: str = setting("", "A PEM file with the key of the certificate; by default it is in tls.cert.file.")
    tls_key_password_file: str = setting("", "A file with the password of the key, if that is encrypted.")
    tls_ca_file: str = setting(
        "", "A PEM file with the issuers of clients' certificates, and of those of a cluster's brokers."
    )
    tls_client_auth: str = setting(
        "none",
        "Whether clients show a certificate. With optional, one without a certificate is User:ANONYMOUS; a wrong "
        "certificate is always refused.",
        choices=tuple(ClientAuth),
    )
    tls_principal: str = setting(
        "cn",
        "The principal of a client with a certificate: User: and its common name, or its whole distinguished name, "
        "such as User:CN=alice,O=example.",
        choices=tuple(PrincipalRule),
    )
    tls_reload_interval_ms: int = _ms(
        10 * SECOND_MS,
        "How often the broker looks whether the files of TLS have changed, and loads them for new connections; 0: only "
        "on SIGHUP.",
        minimum=0,
    )
    admin_listen: str = setting(
        "", "HOST:PORT for metrics and health checks over HTTP, without authentication; none if empty."
    )
    metrics_max_topics: int = _integer(
        1000,
        "topics",
        "The most topics with metrics of their own; those of the others are added up.",
        minimum=0,
        is_dynamic=True,
    )
    metrics_max_groups: int = _integer(
        1000,
        "groups",
        "The most groups, and pairs of a group and a topic, with metrics of their own; the others are added up.",
        minimum=0,
        is_dynamic=True,
    )
    log_format: str = setting(
        "auto",
        "How the broker writes its log to stderr: text, json (an object a line), or auto, which is text on a terminal "
        "and json elsewhere.",
        choices=tuple(LogFormat),
    )
    log_level: str = setting(
        "info",
        "The least level of the lines in the broker's log: debug, info, warning, error or critical; other levels for "
        "parts of the broker may follow, with commas between them, such as info,network=debug.",
        is_dynamic=True,
    )
    node_id: int = _integer(
        1, "", "This broker's number; a data directory keeps the number that it was created with.", minimum=0
    )
    # a cluster of several brokers
    cluster_etcd: str = setting(
        "",
        "HOST:PORT of each member of etcd, separated by commas, by which the brokers of a cluster agree; without it "
        "this broker is a cluster alone.",
    )
    cluster_id: str = setting("", "The name of the cluster in etcd, as `warmlog cluster init` has created it.")
    cluster_etcd_user: str = setting("", "The user as which this broker authenticates at etcd, if etcd asks for one.")
    cluster_etcd_password_file: str = setting("", "A file with the password of that user.")
    cluster_etcd_ca_file: str = setting(
        "", "A PEM file with the issuers of the certificates of etcd: connections to it use TLS."
    )
    cluster_etcd_cert_file: str = setting("", "A PEM file with the certificate that this broker shows to etcd.")
    cluster_etcd_key_file: str = setting(
        "", "A PEM file with the key of that certificate; by default it is in cluster.etcd.cert.file."
    )
    cluster_secret_file: str = setting(
        "",
        "A file with the secret by which the brokers of a cluster know one another, the same for all; without it they "
        "show certificates of the user __broker, and tls.client.auth is set.",
    )
    cluster_listener: str = setting(
        "", "The listener at which the other brokers of the cluster connect; by default the first."
    )
    broker_session_timeout_ms: int = _ms(
        6 * SECOND_MS,
        "A broker of a cluster that is silent for this long loses what it leads to others.",
        minimum=SECOND_MS,
        maximum=10 * MINUTE_MS,
    )
    cluster_refill_bytes_per_second: int = _integer(
        0,
        "bytes/s",
        "How fast this broker takes in what its replicas lack that are not in sync, over all of them; 0: no bound.",
        minimum=0,
        maximum=TIB,
        is_dynamic=True,
    )
    rack: str = setting(
        "",
        "Where this broker is, such as a rack or a zone: the replicas of a partition are spread over these, and "
        "consumers there read from it.",
    )
    # authentication
    sasl_mechanisms: str = setting(
        ",".join(MECHANISMS),
        "The mechanisms that listeners of sasl_plaintext and sasl_ssl offer, separated by commas. PLAIN may be one of "
        "them, which only listeners of kafka+sasl_ssl offer.",
    )
    sasl_session_lifetime_ms: int = _ms(
        HOUR_MS,
        "How long a client is authenticated; it authenticates again on its connection before that. 0: for as long as "
        "it is connected.",
        minimum=0,
    )
    sasl_failure_delay_ms: int = _ms(
        500,
        "How long a client waits for the response to a failed authentication.",
        minimum=0,
        maximum=10 * SECOND_MS,
        is_dynamic=True,
    )
    # rights
    authorization: str = setting(
        "none",
        "Whether requests need rights: with none every client may do everything, with acl what a rule allows to its "
        "principal (warmlog acl).",
        choices=tuple(Authorization),
    )
    super_users: str = setting(
        "",
        "Principals that may do everything, whatever rules say, separated by semicolons, such as "
        "User:admin;User:CN=ops,O=example.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False,
        "Whether every principal may do everything with a topic, group or transactional id that no rule is about. The "
        "cluster is never open: users and rules belong to those who may alter it.",
    )
    # connections
    max_connections: int = _integer(
        8192,
        "connections",
        "The most connections that are open at once. One more ends one that takes longer than a second to "
        "authenticate; if there is none, it is refused.",
    )
    max_connections_per_ip: int = _integer(
        8192, "connections", "The most connections from one address.", is_dynamic=True
    )
    quota_max_throttle_ms: int = _ms(
        10 * SECOND_MS,
        "How long at most the connection of a client that exceeds a quota is not read after one request.",
        maximum=20 * SECOND_MS,  # clients wait 30 s for a response that does not tell the delay
    )
    handshake_timeout_ms: int = _ms(
        10 * SECOND_MS,
        "A connection that has not sent its handshake within this time is closed; also one that has not finished that "
        "of TLS, or not authenticated, if its listener asks for it.",
    )
    connections_max_idle_ms: int = _ms(10 * MINUTE_MS, "A connection without requests for this long is closed.")
    connections_stall_timeout_ms: int = _ms(
        MINUTE_MS,
        "A connection that moves less than 1 KiB a second of an incomplete request, or of its unread responses, over "
        "this time is closed.",
        is_dynamic=True,
    )
    max_in_flight_requests: int = _integer(
        64, "requests", "The most requests of a connection without a response; above that it is not read."
    )
    # memory
    socket_request_max_bytes: int = _bytes(100 * MIB, "The largest frame that is accepted.", minimum=64 * KIB)
    request_header_max_bytes: int = _bytes(
        MIB, "The largest request without its batches.", minimum=64 * KIB, maximum=MAX_HEADER_BYTES
    )
    request_max_items: int = _integer(
        DEFAULT_MAX_ITEMS, "items", "The most topics or partitions that one request may name."
    )
    queued_max_request_bytes: int = _bytes(
        256 * MIB,
        "Memory for in-flight requests, over all connections. When it is used up, further requests wait. "
        "socket.request.max.bytes of it are reserved for the request that has waited longest. A large batch that is "
        "decompressed for a request counts too, one at a time, even if that exceeds this limit.",
        minimum=64 * KIB,
        maximum=TIB,
    )
    queued_max_response_bytes: int = _bytes(
        256 * MIB,
        "Memory for responses that clients have not read yet, over all connections: messages, and columns converted "
        "for clients of Kafka; not what is sent from files. Above it, a connection that holds some of it gets no "
        "further ones, and another one batch at a time.",
        minimum=MIB,
        maximum=TIB,
    )
    batch_max_decompressed_bytes: int = _bytes(
        DEFAULT_MAX_DECOMPRESSED_BYTES,
        "The largest decompressed size of a batch that the broker opens: on compacted topics and for their compaction, "
        "for compression.type, and for lookups by time.",
        minimum=MIB,
        maximum=DEFAULT_MAX_DECOMPRESSED_BYTES,
    )
    kafka_converted_cache_bytes: int = _bytes(
        64 * MIB,
        "Memory for batches that were converted for clients of Kafka, so that several readers at the end of a topic "
        "share the work.",
        minimum=0,
        maximum=TIB,
    )
    send_queue_bytes: int = _bytes(
        64 * MIB,
        "Responses of one connection that its client has not read yet, file ranges included; above that its requests "
        "wait.",
        minimum=64 * KIB,
        is_dynamic=True,
    )
    # fetch
    fetch_max_bytes: int = _bytes(55 * MIB, "The largest response to one Fetch.", minimum=KIB, is_dynamic=True)
    fetch_max_wait_ms: int = _ms(
        5 * MINUTE_MS, "The longest that a Fetch may wait for data.", minimum=0, is_dynamic=True
    )
    fetch_sendfile_enable: bool = setting(
        True,
        "Whether data goes from file to socket by sendfile instead of being copied; within TLS it is always copied.",
    )
    cold_read_threads: int = _threads(4, "Threads that read data that is not in the page cache.")
    # disk
    flush_threads: int = _threads(4, "Threads that flush the files of one group commit.")
    flush_syncfs_files: int = _integer(
        24,
        "files",
        "A group commit of this many files or more flushes the whole file system at once; 0: never.",
        minimum=0,
    )
    disk_reserve_bytes: int = _bytes(
        128 * MIB,
        "A data directory with less free space than this accepts no records and no new partitions; reading, deleting "
        "and retention continue and may use it. Unless another number is set, it is at most a tenth of the disk.",
        minimum=0,
        maximum=TIB,
    )
    num_recovery_threads: int = _threads(4, "The most threads for each data directory that check partitions at start.")
    max_open_files: int = _integer(
        8192, "files", "The most segment and index files that are open or mapped at once.", minimum=64
    )
    log_flush_offset_checkpoint_interval_ms: int = _ms(
        SECOND_MS, "How soon after a flush the recovery points are stored."
    )
    index_warm_bytes: int = _bytes(
        WARM_BYTES,
        "How much of the end of each active index is kept in memory, so that lookups in idle topics are fast too; "
        "0: off.",
        minimum=0,
        maximum=64 * MIB,
    )
    index_warm_max_bytes: int = _bytes(
        256 * MIB, "The most memory for the ends of active indexes, over all of them.", minimum=0, maximum=TIB
    )
    log_dir_move_bytes_per_second: int = _integer(
        64 * MIB,
        "bytes/s",
        "How fast each partition that moves to another data directory is copied.",
        minimum=64 * KIB,
        maximum=TIB,
        is_dynamic=True,
    )
    # topics
    auto_create_topics_enable: bool = setting(
        False,
        "Whether a topic that does not exist is created when a client of Kafka asks for it and may create it, with the "
        "default settings.",
        is_dynamic=True,
    )
    num_partitions: int = _integer(
        1,
        "partitions",
        "Partitions of a new topic, unless the request that creates it gives a number.",
        is_dynamic=True,
    )
    max_partitions_per_topic: int = _integer(1000, "partitions", "The most partitions of one topic.", is_dynamic=True)
    max_partitions: int = _integer(10_000, "partitions", "The most partitions of this broker.", is_dynamic=True)
    max_producer_ids_per_partition: int = _integer(
        10_000,
        "producer ids",
        "How many idempotent producers a partition remembers; the least recently seen one is forgotten first.",
        minimum=100,
    )
    producer_id_expiration_ms: int = _ms(
        DAY_MS, "A partition forgets an idempotent producer that has not written to it for this long.", is_dynamic=True
    )
    log_retention_check_interval_ms: int = _ms(
        5 * MINUTE_MS,
        "How often the broker looks for segments to delete, and for idle ones to roll because of segment.ms.",
    )
    log_retention_clock_settle_ms: int = _ms(
        HOUR_MS,
        "How long a clock that has jumped ahead must run on before data is deleted by it; 0: trusted at once.",
        minimum=0,
    )
    # compaction
    log_cleaner_threads: int = _threads(
        1, "Threads that compact topics with cleanup.policy=compact; 0: none is compacted.", minimum=0, maximum=64
    )
    log_cleaner_dedupe_buffer_size: int = _bytes(
        128 * MIB,
        "Memory for the keys of one pass, over all threads; a key takes 208 bytes. Keys that do not fit take another "
        "pass.",
        minimum=MIB,
        maximum=TIB,
    )
    log_cleaner_io_max_bytes_per_second: int = _integer(
        UNLIMITED,
        "bytes/s",
        "How fast compaction may read and write, over all threads.",
        minimum=UNLIMITED,
        maximum=TIB,
    )
    log_cleaner_backoff_ms: int = _ms(
        15 * SECOND_MS, "How long compaction pauses when no log needs it.", is_dynamic=True
    )
    # consumer groups
    group_coordinator_partitions: int = _integer(
        16, "partitions", "Partitions of __groups, which holds the state of consumer groups, when it is created."
    )
    group_session_timeout_ms: int = _ms(
        45 * SECOND_MS,
        "A member that is silent for this long loses its place in the group, unless it has asked for another time.",
        is_dynamic=True,
    )
    group_min_session_timeout_ms: int = _ms(
        2 * SECOND_MS, "The shortest session timeout that a member may ask for.", is_dynamic=True
    )
    group_max_session_timeout_ms: int = _ms(
        10 * MINUTE_MS, "The longest session timeout that a member may ask for.", is_dynamic=True
    )
    group_heartbeat_interval_ms: int = _ms(
        5 * SECOND_MS,
        "How often members send a heartbeat; at least three times in their session timeout.",
        is_dynamic=True,
    )
    group_rebalance_timeout_ms: int = _ms(
        5 * MINUTE_MS,
        "How long a member may take to give up partitions before it loses its place in the group, unless it has asked "
        "for another time.",
        is_dynamic=True,
    )
    group_assignment_interval_ms: int = _ms(
        200, "The least time between two assignments of a group: changes in between share the next one.", minimum=0
    )
    group_initial_rebalance_delay_ms: int = _ms(
        500, "How long the first assignment of a group without members waits for more of them.", minimum=0
    )
    group_max_size: int = _integer(1000, "members", "The most members of one group.", is_dynamic=True)
    group_max_groups: int = _integer(100_000, "groups", "The most groups of this broker.", is_dynamic=True)
    offsets_retention_ms: int = _ms(
        30 * DAY_MS,
        "How long the committed offsets of a group are kept after its last member has left, after its last commit, of "
        "any partition, and after the last client that reads with it has disconnected. A group with members keeps all.",
        maximum=MAX_INT64,
        is_dynamic=True,
    )
    coordinator_max_bytes: int = _bytes(
        512 * MIB,
        "The most memory that groups with their members and offsets, and transactional ids with their partitions, take "
        "in all, about. What would take more is refused with POLICY_VIOLATION.",
        minimum=MIB,
        is_dynamic=True,
    )
    coordinator_principal_max_bytes: int = _bytes(
        128 * MIB,
        "The most of that for the groups and transactional ids that one authenticated principal has created.",
        minimum=64 * KIB,
        is_dynamic=True,
    )
    offset_metadata_max_bytes: int = _bytes(
        4 * KIB, "The largest text that may be committed with an offset.", minimum=0, maximum=MIB, is_dynamic=True
    )
    # transactions
    transaction_coordinator_partitions: int = _integer(
        16, "partitions", "Partitions of __transactions, which holds the state of transactions, when it is created."
    )
    transaction_max_timeout_ms: int = _ms(
        15 * MINUTE_MS, "The longest timeout that a transaction of a producer may have."
    )
    transactional_id_expiration_ms: int = _ms(
        7 * DAY_MS, "A transactional id that is not used for this long is forgotten."
    )
    transaction_job_max_timeout_ms: int = _ms(
        DAY_MS, "The longest time that the transaction of a job may be open without a heartbeat of a member."
    )
    transaction_job_expiration_ms: int = _ms(
        90 * DAY_MS,
        "A job that is not used for this long is forgotten: what it has committed last could be written again.",
        maximum=MAX_INT64,
    )
    transaction_max_ids: int = _integer(
        100_000, "ids", "The most transactional ids in one partition of __transactions."
    )
    # crashes
    crash_loop_limit: int = _integer(
        5,
        "starts",
        "After this many starts in a row that crashed before the broker served, all within crash.loop.window.ms, a "
        "start is refused with the reason; 0: never. A broker that was killed while it served does not count.",
        minimum=0,
        maximum=20,
    )
    crash_loop_window_ms: int = _ms(HOUR_MS, "How long a start that crashed counts.")
    # stop
    shutdown_drain_ms: int = _ms(
        10 * SECOND_MS, "How long a stop waits for requests in flight.", minimum=0, is_dynamic=True
    )
    shutdown_disk_ms: int = _ms(
        MINUTE_MS,
        "How long a stop then waits for the disks. After that the broker exits as in a crash: acknowledged data is "
        "kept, and the next start checks the logs.",
        is_dynamic=True,
    )

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The data directories; the first one holds the metadata log."""
        if self.data_dir:
            return (Path(self.data_dir),)
        return tuple(Path(name.strip()) for name in self.data_dirs.split(",") if name.strip())

    @property
    def all_listeners(self) -> tuple[Listener, ...]:
        """The listeners of `listeners`, or those of `listen` and `kafka.listen`."""
        if self.listeners:
            return parse_listeners(self.listeners, self.advertised_listeners)
        return short_listeners(self.listen, self.kafka_listen, self.advertised_listeners)

    @property
    def peer_listener(self) -> Listener:
        """The listener at which other brokers of the cluster connect."""
        listeners = self.all_listeners
        return next((each for each in listeners if each.name == self.cluster_listener), listeners[0])

    @property
    def offered_mechanisms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name.strip() for name in self.sasl_mechanisms.split(",") if name.strip()))

    @property
    def super_user_principals(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.super_users.split(";") if name.strip())
