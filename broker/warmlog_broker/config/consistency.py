"""Settings that contradict each other, or lack another one."""

import os
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from warmlog_broker.config.broker_settings import BrokerSettings, ClientAuth
from warmlog_broker.config.listeners import Wire, format_address, parse_address
from warmlog_broker.config.log_levels import parse_log_level
from warmlog_protocol.errors import InvalidConfig
from warmlog_protocol.sasl.credential import MECHANISMS, PLAIN

CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
NEEDED_AT_ETCD = (
    ("cluster_etcd_password_file", "cluster_etcd_user"),
    ("cluster_etcd_key_file", "cluster_etcd_cert_file"),
    ("cluster_etcd_cert_file", "cluster_etcd_ca_file"),
)
"""Settings, and those without which they have no effect."""


def check_consistency(config: BrokerSettings, settings: Mapping[str, str]) -> None:
    """Raise InvalidConfig for the first contradiction; `settings` are those that were given."""
    if settings.get("kafka.listen") and settings.get("listeners"):
        raise InvalidConfig(
            f"kafka.listen ({settings['kafka.listen']}) and listeners ({settings['listeners']}) are both set: remove "
            f"one, or add kafka=kafka+plaintext://{settings['kafka.listen']} to listeners"
        )
    if settings.get("listen") and settings.get("listeners"):
        raise InvalidConfig(
            f"listen ({settings['listen']}) and listeners ({settings['listeners']}) are both set: remove one"
        )
    parse_log_level(config.log_level)
    problems = chain(
        _in_data_paths(config),
        _in_listeners(config),
        _in_tls(config),
        _in_cluster(config),
        _in_names(config),
        _in_limits(config),
    )
    for problem in problems:
        raise InvalidConfig(problem)


def _in_data_paths(config: BrokerSettings) -> Iterator[str]:
    """There is a directory, and none is given twice or is inside another."""
    if config.data_dir and config.data_dirs:
        yield f"data.dir ({config.data_dir}) and data.dirs ({config.data_dirs}) are both set: remove one of them"
    if not config.data_paths:
        yield "data.dir is not set: give the broker a directory for its data"
    resolved = [Path(os.path.realpath(path)) for path in config.data_paths]  # resolve() may raise for a loop of links
    for number, path in enumerate(resolved):
        for other in resolved[:number]:
            if path == other:
                yield f"data.dirs: {path} is given twice"
            if path.is_relative_to(other) or other.is_relative_to(path):
                yield f"data.dirs: one of {path} and {other} is inside the other"


def _in_listeners(config: BrokerSettings) -> Iterator[str]:
    """No listener lets other machines connect without having to authenticate, and each port is used once."""
    for listener in config.all_listeners:
        shows_certificate = listener.uses_tls and config.tls_client_auth == ClientAuth.REQUIRED
        if not (listener.is_local or listener.authenticates or shows_certificate or config.allow_unauthenticated):
            place = format_address(listener.host, listener.port)
            yield (
                f"listener {listener.name} at {place} accepts connections from other machines without "
                "authentication: all who reach it can read, write and delete everything. Bind it to 127.0.0.1, "
                "have clients give passwords (sasl_ssl) or show certificates (ssl with tls.client.auth=required), or "
                "allow it with allow.unauthenticated=true"
            )
    admin = {"admin.listen": parse_address(config.admin_listen, "admin.listen")} if config.admin_listen else {}
    wanted = {f"listener {each.name}": (each.host, each.port) for each in config.all_listeners} | admin
    users: dict[tuple[str, int], str] = {}
    for user, address in wanted.items():
        other = users.setdefault(address, user)
        if other != user and address[1]:
            yield f"{user} and {other} are both at {format_address(*address)}: each needs its own port"


def _in_tls(config: BrokerSettings) -> Iterator[str]:
    """A listener with TLS has its settings, and the settings their listener; clients' certificates have issuers."""
    files = {
        "tls.cert.file": config.tls_cert_file,
        "tls.key.file": config.tls_key_file,
        "tls.key.password.file": config.tls_key_password_file,
        "tls.ca.file": config.tls_ca_file,
    }
    if any(listener.uses_tls for listener in config.all_listeners):
        if not config.tls_cert_file:
            yield "tls.cert.file is not set: a listener with TLS needs a certificate and its key"
    else:
        for name, path in files.items():
            if path:
                yield (
                    f"{name}: {path} is set, but no listener uses TLS: give one in listeners, such as "
                    "listeners=secure=ssl://127.0.0.1:7400"
                )
    if config.tls_client_auth != ClientAuth.NONE and not config.tls_ca_file:
        yield f"tls.client.auth: {config.tls_client_auth} needs tls.ca.file, the issuers of clients' certificates"
    if config.tls_client_auth == ClientAuth.NONE and config.tls_ca_file and not config.cluster_etcd:
        yield (
            f"tls.ca.file: {config.tls_ca_file} is set, but clients are not asked for certificates: set "
            "tls.client.auth to optional or required"
        )


def _in_cluster(config: BrokerSettings) -> Iterator[str]:
    """A broker of a cluster has what that needs, and one that is alone has nothing of it."""
    of_cluster = [(name, "cluster_etcd") for name in config.__struct_fields__ if name.startswith("cluster_")]
    for name, needed in (*of_cluster, *NEEDED_AT_ETCD):
        if getattr(config, name) and not getattr(config, needed):
            names = [each.replace("_", ".") for each in (name, needed)]
            yield f"{names[0]} has no effect without {names[1]}, which is not set: set both, or neither"
    if not config.cluster_etcd:
        return
    for address in config.cluster_etcd.split(","):
        parse_address(address.strip(), "cluster.etcd")
    if not CLUSTER_ID.fullmatch(config.cluster_id):
        yield (
            f"cluster.id: {config.cluster_id!r} is not allowed, it must be the name that was given to `warmlog cluster "
            "init`, 1 to 100 of letters, digits, '.', '_' and '-'"
        )
    listener = config.peer_listener
    if config.cluster_listener not in ("", listener.name):
        yield f"cluster.listener: there is no listener {config.cluster_listener!r}"
    if listener.wire is not Wire.WARMLOG:
        yield f"cluster.listener: {listener.name} is for clients of Kafka, and brokers do not speak their protocol"
    if not config.cluster_secret_file and not (listener.uses_tls and config.tls_client_auth != ClientAuth.NONE):
        yield (
            "cluster.secret.file is not set: the brokers of a cluster know one another by a secret, or by certificates "
            f"on the listener {listener.name} with tls.client.auth"
        )
    for each in config.all_listeners:
        if each.advertised is None and each.host in ("0.0.0.0", "::"):  # noqa: S104 - nothing is bound here
            yield (
                f"advertised.listeners: {each.name} is missing: in a cluster clients are told where each broker is, "
                f"and {each.host} is no address: give it, such as {each.name}=broker1.example.org:{each.port}"
            )


def _in_names(config: BrokerSettings) -> Iterator[str]:
    """What is called a principal or a mechanism is one."""
    for principal in config.super_user_principals:
        if not principal.startswith("User:") or principal in ("User:", "User:*") or ",User:" in principal:
            yield (
                f"super.users: {principal!r} is not a principal: User: and a name is, with semicolons between "
                "several of them"
            )
    if not config.offered_mechanisms or not set(config.offered_mechanisms) <= {*MECHANISMS, PLAIN}:
        known = ", ".join((*MECHANISMS, PLAIN))
        yield f"sasl.mechanisms: {config.sasl_mechanisms!r} is not allowed, it must name some of {known}"
    if PLAIN in config.offered_mechanisms and not any(each.may_offer_plain for each in config.all_listeners):
        yield (
            "sasl.mechanisms: PLAIN shows passwords, and is only offered to clients of Kafka with TLS: give a listener "
            "of kafka+sasl_ssl, or leave it out"
        )


def _in_limits(config: BrokerSettings) -> Iterator[str]:
    if config.queued_max_request_bytes < config.socket_request_max_bytes:
        yield (
            f"queued.max.request.bytes: {config.queued_max_request_bytes} is not allowed, it must be at least "
            f"socket.request.max.bytes = {config.socket_request_max_bytes}"
        )
    if config.log_cleaner_io_max_bytes_per_second == 0:
        yield "log.cleaner.io.max.bytes.per.second: 0 is not allowed, use -1 for no limit"
    shortest_ms, longest_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not shortest_ms <= config.group_session_timeout_ms <= longest_ms:
        yield (
            f"group.session.timeout.ms: {config.group_session_timeout_ms} is not allowed, it must be from "
            f"group.min.session.timeout.ms = {shortest_ms} to group.max.session.timeout.ms = {longest_ms}"
        )
    if config.num_partitions > config.max_partitions_per_topic:
        yield (
            f"num.partitions: {config.num_partitions} is not allowed, it must be at most "
            f"max.partitions.per.topic = {config.max_partitions_per_topic}"
        )
