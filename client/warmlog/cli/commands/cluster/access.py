"""How the commands of a cluster reach its etcd: options that have the names of the broker's settings."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.options import json_option
from warmlog.cli.terminal.paths import FILE
from warmlog.extras import install_hint

if TYPE_CHECKING:
    from warmlog_broker.cluster.records import PartitionKey
    from warmlog_broker.cluster.view import View
    from warmlog_broker.etcd.client import EtcdClient

T = TypeVar("T")


class Place(NamedTuple):
    cluster_id: str = ""
    etcd: str = ""
    etcd_user: str = ""
    etcd_password_file: str | Path = ""
    etcd_ca_file: str | Path = ""
    etcd_cert_file: str | Path = ""
    etcd_key_file: str | Path = ""


_OPTIONS = (
    ("--etcd", "cluster.etcd", "HOST:PORT,…", str, "The members of etcd."),
    ("--cluster-id", "cluster.id", "NAME", str, "The name of the cluster in etcd."),
    ("--etcd-user", "cluster.etcd.user", "NAME", str, "The user to authenticate as, if etcd asks for one."),
    ("--etcd-password-file", "cluster.etcd.password.file", "FILE", FILE, "A file with the password of that user."),
    ("--etcd-ca-file", "cluster.etcd.ca.file", "FILE", FILE, "The issuers of etcd's certificates: then TLS is used."),
    ("--etcd-cert-file", "cluster.etcd.cert.file", "FILE", FILE, "The certificate to show to etcd."),
    ("--etcd-key-file", "cluster.etcd.key.file", "FILE", FILE, "The key of that certificate."),
)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the cluster is, and --json; the command gets a `place`."""

    @wraps(command)
    def with_place(**given: Any) -> Any:
        place = Place(**{name: value for name in Place._fields if (value := given.pop(name)) is not None})
        return command(place=place, **given)

    decorated: Callable[..., Any] = json_option(with_place)
    for option, setting, metavar, kind, text in reversed(_OPTIONS):
        variable = f"WARMLOG_{setting.upper().replace('.', '_')}"
        decorated = click.option(option, type=kind, metavar=metavar, envvar=variable, show_envvar=True, help=text)(
            decorated
        )
    return decorated


def in_etcd(place: Place, ask: "Callable[[EtcdClient], Awaitable[T]]") -> T:
    if not place.etcd:
        raise click.UsageError("where is etcd? Give --etcd HOST:PORT, or set WARMLOG_CLUSTER_ETCD")
    if find_spec("grpc") is None:
        raise CommandFailed(f"a cluster needs more packages: {install_hint('cluster')}")

    async def main() -> T:
        from warmlog_broker.etcd.client import EtcdClient
        from warmlog_broker.etcd.connection import EtcdOptions

        client = EtcdClient(EtcdOptions.given(*place[1:]))
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(main())


def in_cluster(place: Place, ask: "Callable[[EtcdClient, View], Awaitable[T]]") -> T:
    """Return the result of `ask` with a view of the cluster, which follows what changes."""
    if not place.cluster_id:
        raise click.UsageError("which cluster? Give --cluster-id NAME, or set WARMLOG_CLUSTER_ID")

    async def main(etcd: "EtcdClient") -> T:
        from warmlog_broker.cluster.keys import Keys
        from warmlog_broker.cluster.view import View

        view = View(etcd, Keys(place.cluster_id), -1)
        async with view.followed():
            if view.items.get(view.keys.cluster) is None:
                raise CommandFailed(f"etcd has no cluster {place.cluster_id!r}: `warmlog cluster init` creates it")
            return await ask(etcd, view)

    return in_etcd(place, main)


def partitions_of(view: "View", topic: str, partition: int | None) -> "list[PartitionKey]":
    """Return the keys of a topic's partitions, or of one of them. CommandFailed if there is none."""
    from warmlog_broker.cluster.records import PartitionKey

    entry = view.state.topics.get(topic)
    if entry is None:
        raise CommandFailed(f"there is no topic {topic!r}")
    if partition is not None and partition >= entry.partitions:
        raise CommandFailed(f"topic {topic!r} has no partition {partition}, it has {entry.partitions}")
    numbers = range(entry.partitions) if partition is None else [partition]
    return [PartitionKey(entry.topic_id, number) for number in numbers]


def names_of(view: "View") -> dict[bytes, str]:
    """Return the names of topics by their ids."""
    return {entry.topic_id: name for name, entry in view.state.topics.items()}
