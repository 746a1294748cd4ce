"""Every option of format("warmlog"): its name, type, default and meaning, and whether it is for reading or writing.

Options that Spark's Kafka connector has too have its names and meanings, so that porting a Kafka job takes only another
format name. The documentation is generated from this table.
"""

from enum import Flag, auto
from typing import NamedTuple


class Use(Flag):
    """What an option is for."""

    BATCH = auto()
    STREAM = auto()
    WRITE = auto()
    READ = BATCH | STREAM
    ALL = READ | WRITE


class Option(NamedTuple):
    """One row. `default` is text; empty if an option that is not given has no value."""

    name: str
    kind: str
    use: Use
    sentence: str
    default: str = ""
    aliases: tuple[str, ...] = ()


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option(
            "bootstrap.servers",
            "host:port, …",
            Use.ALL,
            "host:port of a broker; if several, separated by commas, they are tried in turn",
            aliases=("kafka.bootstrap.servers",),
        ),
        Option("subscribe", "names", Use.READ, "the topics to read, separated by commas"),
        Option("subscribePattern", "pattern", Use.READ, "a Python regular expression that matches whole topic names"),
        Option("assign", "JSON", Use.READ, 'the partitions to read: {"topic": [0, 1]}'),
        Option("partitions", "numbers", Use.BATCH, "read only these partitions of each topic: 0,3-7"),
        Option(
            "startingOffsets",
            "offsets",
            Use.READ,
            "where to start: earliest, latest (streams), committed (what the option group has committed, or the "
            "earliest if that is nothing), an offset, a tail like -100, a time like "
            "2026-11-20T08:00:00Z or -10m, or JSON by topic and partition, where -2 is the earliest and -1 the latest",
            default="earliest",
        ),
        Option("group", "name", Use.READ, "the consumer group of startingOffsets=committed and of commitOffsets"),
        Option(
            "commitOffsets",
            "boolean",
            Use.STREAM,
            "whether each micro-batch that is done is committed to the option group, which must have no members",
            default="false",
        ),
        Option(
            "startingOffsetsByTimestamp",
            "JSON",
            Use.READ,
            "where to start, by topic and partition: milliseconds or any time that startingTimestamp takes; "
            "overrides startingOffsets",
        ),
        Option(
            "startingTimestamp",
            "time",
            Use.READ,
            "the time to start at: milliseconds, ISO 8601 or -10m; a batch reads only records of that time or later, "
            "a stream starts at the first of them and reads all that follow; overrides the other two",
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            "error or latest",
            Use.READ,
            "what to do with a partition that has no record at or after its starting time",
            default="error",
        ),
        Option(
            "endingOffsets",
            "offsets",
            Use.BATCH,
            "where to end, exclusive: latest, an offset, a tail like -100, a time, or JSON by topic and partition, "
            "where -1 is the latest",
            default="latest",
        ),
        Option(
            "endingOffsetsByTimestamp",
            "JSON",
            Use.BATCH,
            "where to end, exclusive, by topic and partition: milliseconds or any time that endingTimestamp takes; "
            "overrides endingOffsets",
        ),
        Option(
            "endingTimestamp",
            "time",
            Use.BATCH,
            "the time to end at, exclusive for each record: milliseconds, ISO 8601 or -10m; overrides the other two",
        ),
        Option(
            "failOnDataLoss",
            "boolean",
            Use.READ,
            "whether offsets that are gone or unreadable are an error; otherwise they are skipped with a warning",
            default="true",
        ),
        Option("minPartitions", "number", Use.READ, "the smallest number of tasks, unless there are fewer records"),
        Option("maxRecordsPerPartition", "number", Use.READ, "the most offsets that a task reads"),
        Option(
            "maxBytesPerPartition",
            "size",
            Use.READ,
            "about how many bytes of the log a task reads; small partitions share a task",
            default="256m",
        ),
        Option("limit", "number", Use.BATCH, "read this many records, partition after partition, in one task"),
        Option(
            "columns",
            "names",
            Use.READ,
            "the columns, in this order, instead of .schema(…): value string, offset; key and value may be string",
        ),
        Option(
            "maxOffsetsPerTrigger",
            "number",
            Use.STREAM,
            "the most offsets of a micro-batch, divided among partitions in proportion to their new offsets; at "
            "least one for each partition",
        ),
        Option("maxBytesPerTrigger", "size", Use.STREAM, "about how many bytes of the log a micro-batch reads"),
        Option(
            "minOffsetsPerTrigger",
            "number",
            Use.STREAM,
            "wait until this many offsets are new, for maxTriggerDelay at most",
        ),
        Option(
            "maxTriggerDelay",
            "duration",
            Use.STREAM,
            "how long minOffsetsPerTrigger may delay a micro-batch",
            default="15m",
        ),
        Option("valueFormat", "json", Use.READ, "json: the schema names fields of the values"),
        Option(
            "mode",
            "permissive or failfast",
            Use.READ,
            "with valueFormat, what becomes of a record that does not fit: wrong fields are null, or it is an error",
            default="permissive",
        ),
        Option("fetch.maxBytes", "size", Use.READ, "about how many bytes one fetch returns, 92m at most", default="4m"),
        Option(
            "fetch.inFlight", "number", Use.READ, "how many fetches a task has in flight, 1000 at most", default="4"
        ),
        Option(
            "fetch.timeoutMs",
            "duration",
            Use.READ,
            "how long a task, or a stream between micro-batches, retries without receiving anything before it fails",
            default="120s",
            aliases=("kafkaConsumer.pollTimeoutMs",),
        ),
        Option(
            "fetchOffset.numRetries",
            "number",
            Use.READ,
            "how often planning is retried after a retriable error; a stream that has planned before retries for at "
            "least fetch.timeoutMs",
            default="3",
        ),
        Option(
            "fetchOffset.retryIntervalMs", "duration", Use.READ, "how long planning waits between tries", default="1s"
        ),
        Option(
            "verifyChecksums",
            "boolean",
            Use.READ,
            "whether the CRC of every batch is checked; its structure is always checked",
            default="true",
        ),
        Option(
            "isolation.level",
            "read_uncommitted or read_committed",
            Use.READ,
            "read_committed leaves out records of aborted and open transactions, and ends before the first open one",
            default="read_committed",
            aliases=("kafka.isolation.level",),
        ),
        Option(
            "includeHeaders",
            "boolean",
            Use.ALL,
            "whether to read the column `headers`; when writing, whether to write it (default there: true)",
            default="false",
        ),
        Option("topic", "name", Use.WRITE, "where to write; overrides a column topic"),
        Option(
            "compression.type",
            "codec",
            Use.WRITE,
            "none, gzip, snappy, lz4 or zstd",
            default="none",
            aliases=("kafka.compression.type",),
        ),
        Option(
            "batch.size",
            "size",
            Use.WRITE,
            "the largest batch of records, within the topic's max.message.bytes",
            default="1m",
            aliases=("kafka.batch.size",),
        ),
        Option(
            "delivery.timeout.ms",
            "time",
            Use.WRITE,
            "how long a task retries without an acknowledgement, or without metadata of a topic, and the driver its "
            "commit",
            default="2m",
            aliases=("kafka.delivery.timeout.ms",),
        ),
        Option(
            "delivery",
            "exactly-once or at-least-once",
            Use.WRITE,
            "exactly-once: readers of committed records see each row once, after the whole write; at-least-once: at "
            "once, and again what Spark runs again",
            default="exactly-once",
        ),
        Option(
            "txnAppId",
            "name",
            Use.WRITE,
            "with txnVersion, names a batch to a topic, so that it can be run again: the version that was committed "
            "last is not written twice, a lower one is an error",
        ),
        Option("txnVersion", "number", Use.WRITE, "the number of the batch of txnAppId; it rises from one to the next"),
        Option(
            "transactionTimeoutMs",
            "duration",
            Use.WRITE,
            "how long a write may stay open while no task of it runs, 24h at most; then it is aborted",
            default="15m",
        ),
        Option("username", "name", Use.ALL, "the user to authenticate as, if brokers authenticate their clients"),
        Option("password", "text", Use.ALL, "the user's password; Spark redacts options of such names"),
        Option(
            "sasl.mechanism",
            "name",
            Use.ALL,
            "SCRAM-SHA-256 or SCRAM-SHA-512",
            "SCRAM-SHA-256",
            aliases=("kafka.sasl.mechanism",),
        ),
        Option("ssl", "boolean", Use.ALL, "whether to connect by TLS; its files must be on every worker", "false"),
        Option(
            "ssl.cafile",
            "path",
            Use.ALL,
            "a PEM file with the issuers of brokers' certificates; by default those that the system trusts",
        ),
        Option("ssl.certfile", "path", Use.ALL, "a PEM file with the client's certificate, if brokers ask for one"),
        Option("ssl.keyfile", "path", Use.ALL, "a PEM file with its key, if that is not in ssl.certfile"),
        Option("ssl.keypassword", "text", Use.ALL, "the password of the key; Spark redacts options of such names"),
        Option(
            "ssl.check.hostname",
            "boolean",
            Use.ALL,
            "whether a broker's certificate must be for the host that was connected to",
            "true",
        ),
    )
}

EXPLAINED = {
    "path": "load() of format warmlog takes no path: name the topics with the option subscribe",
    "provider": "a table of format warmlog cannot be created, as Spark does not pass its options to the reader: "
    "use CREATE TEMPORARY VIEW … USING warmlog OPTIONS (…)",
    "kafka.acks": "records are always written with acks=all, and are on disk when a task is done: leave out kafka.acks",
    "kafka.enable.idempotence": "a task's attempt is always idempotent: leave out kafka.enable.idempotence",
    "kafka.group.id": "format warmlog joins no consumer group: leave out kafka.group.id, or name the group whose "
    "committed offsets to use with the option group",
    "groupidprefix": "format warmlog joins no consumer group: leave out groupIdPrefix",
}
"""Options that do not exist, in lower case, and their error messages. Spark itself adds `path` for the argument of
`load`, and `provider` in CREATE TABLE."""

REFUSED_IN_A_BATCH = frozenset({"commitOffsets"})
"""Options for streams that a batch does not ignore, as its results would differ from what the user expects."""

SPARKS_OWN = {"checkpointlocation": Use.WRITE}
"""Options of Spark itself, in lower case, and when it passes them on."""


def describe_options() -> str:
    """Return the table as Markdown."""
    lines = ["| option | type | default | for | meaning |", "|---|---|---|---|---|"]
    for option in OPTIONS.values():
        uses = ", ".join(
            use.name.lower() for use in (Use.BATCH, Use.STREAM, Use.WRITE) if use in option.use and use.name
        )
        names = " or ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = f"`{option.default}`" if option.default else ""
        lines.append(f"| {names} | {option.kind} | {default} | {uses} | {option.sentence} |")
    return "\n".join(lines) + "\n"
