"""The options of one write, parsed."""

from collections.abc import Mapping
from dataclasses import dataclass

from warmlog.cluster.options import ConnectionOptions
from warmlog.spark.options.option_table import Use
from warmlog.spark.options.options import take_options
from warmlog_protocol.codec.compression import Codec


@dataclass(frozen=True)
class WriteOptions:
    """The options of one write, checked. `topic` None: each row names its own."""

    bootstrap: tuple[str, ...]
    topic: str | None = None
    include_headers: bool = True
    codec: Codec = Codec.NONE
    batch_bytes: int = 1024 * 1024
    delivery_timeout_ms: int = 120_000
    connection: ConnectionOptions = ConnectionOptions(client_name="warmlog-spark")  # noqa: RUF009 - frozen


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. InvalidConfig for the first bad one."""
    options = take_options(given, Use.WRITE)
    return WriteOptions(
        bootstrap=options.addresses("bootstrap.servers"),
        topic=options.text("topic"),
        include_headers="includeHeaders" not in options or options.boolean("includeHeaders"),
        codec=Codec.from_name(options.one_of("compression.type", tuple(codec.label for codec in Codec))),
        batch_bytes=options.size_bytes("batch.size"),
        delivery_timeout_ms=options.duration_ms("delivery.timeout.ms"),
        connection=options.connection(WriteOptions.connection),
    )
