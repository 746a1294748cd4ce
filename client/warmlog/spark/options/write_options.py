"""The options of one write, parsed."""

from collections.abc import Mapping
from dataclasses import dataclass

from warmlog.spark.options.option_table import Use
from warmlog.spark.options.options import take_options
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.errors import InvalidConfig
from warmlog_transport.options import ConnectionOptions

_DAY_MS = 24 * 60 * 60_000


@dataclass(frozen=True)
class WriteOptions:
    """The options of one write, checked. `topic` None: each row names its own."""

    bootstrap: tuple[str, ...]
    topic: str | None = None
    include_headers: bool = True
    codec: Codec = Codec.NONE
    batch_bytes: int = 1024 * 1024
    delivery_timeout_ms: int = 120_000
    is_exactly_once: bool = True
    transaction: tuple[str, int] | None = None
    """txnAppId and txnVersion."""
    transaction_timeout_ms: int = 15 * 60_000
    connection: ConnectionOptions = ConnectionOptions(client_name="warmlog-spark")  # noqa: RUF009 - frozen


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. InvalidConfig for the first bad one."""
    options = take_options(given, Use.WRITE)
    is_exactly_once = options.one_of("delivery", ("exactly-once", "at-least-once")) == "exactly-once"
    for name in ("txnAppId", "txnVersion", "transactionTimeoutMs"):
        if name in options and not is_exactly_once:
            raise InvalidConfig(f"option {name} has no use with delivery=at-least-once: leave out one of them")
    given_names = [name for name in ("txnAppId", "txnVersion") if name in options]
    if len(given_names) == 1:
        raise InvalidConfig(f"option {given_names[0]} is given alone: txnAppId and txnVersion need each other")
    application = options.text("txnAppId")
    timeout_ms = options.duration_ms("transactionTimeoutMs")
    if not 1000 <= timeout_ms <= _DAY_MS:
        raise InvalidConfig(f"option transactionTimeoutMs is {timeout_ms} ms: 1s to 24h is expected")
    return WriteOptions(
        bootstrap=options.addresses("bootstrap.servers"),
        topic=options.text("topic"),
        include_headers="includeHeaders" not in options or options.boolean("includeHeaders"),
        codec=Codec.from_name(options.one_of("compression.type", tuple(codec.label for codec in Codec))),
        batch_bytes=options.size_bytes("batch.size"),
        delivery_timeout_ms=options.duration_ms("delivery.timeout.ms"),
        is_exactly_once=is_exactly_once,
        transaction=None if application is None else (application, options.count("txnVersion")),
        transaction_timeout_ms=timeout_ms,
        connection=options.connection(WriteOptions.connection),
    )
