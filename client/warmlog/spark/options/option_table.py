"""Every option of format("warmlog"): its name, type and default, what it is for, and who takes it.

Names and meanings are those of Spark's Kafka connector where it has the option too, so that a Kafka job ports by
changing the format's name. The documentation is printed from this table.
"""

from enum import Flag, auto
from typing import NamedTuple


class Use(Flag):
    """What a data source is asked to do."""

    BATCH = auto()
    STREAM = auto()
    WRITE = auto()
    READ = BATCH | STREAM
    ALL = READ | WRITE


class Option(NamedTuple):
    """One row. `default` is what the option is when nobody gives it, as text; empty when it is then not there."""

    name: str
    kind: str
    default: str
    use: Use
    sentence: str
    aliases: tuple[str, ...] = ()


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option(
            "bootstrap.servers",
            "host:port, …",
            "",
            Use.ALL,
            "host:port of a broker; several, separated by commas, are tried in turn",
            aliases=("kafka.bootstrap.servers",),
        ),
        Option("subscribe", "names", "", Use.READ, "the topics to read, separated by commas"),
        Option(
            "subscribePattern", "pattern", "", Use.READ, "a Python regular expression: topics whose whole name fits"
        ),
        Option("assign", "JSON", "", Use.READ, 'the partitions to read: {"topic": [0, 1]}'),
        Option("partitions", "numbers", "", Use.BATCH, "of each topic only these partitions: 0,3-7"),
        Option(
            "startingOffsets",
            "offsets",
            "earliest",
            Use.READ,
            "where to start: earliest, latest (streams), a tail like -100, or JSON by topic and partition, where -2 is "
            "the earliest and -1 the latest",
        ),
        Option(
            "startingOffsetsByTimestamp",
            "JSON",
            "",
            Use.READ,
            "where to start, by topic and partition: milliseconds or any time that startingTimestamp takes; comes "
            "before startingOffsets",
        ),
        Option(
            "startingTimestamp",
            "time",
            "",
            Use.READ,
            "the time to start at: milliseconds, ISO 8601 or -10m, exact for each record of a batch; a stream starts "
            "at the first record of that time or later, whatever comes behind it; comes before the other two",
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            "error or latest",
            "error",
            Use.READ,
            "what to do with a partition that has no record at or after its starting time",
        ),
        Option(
            "endingOffsets",
            "offsets",
            "latest",
            Use.BATCH,
            "where to end, exclusive: latest, a tail like -100, or JSON by topic and partition, where -1 is the latest",
        ),
        Option(
            "endingOffsetsByTimestamp",
            "JSON",
            "",
            Use.BATCH,
            "where to end, exclusive, by topic and partition: milliseconds or any time that endingTimestamp takes; "
            "comes before endingOffsets",
        ),
        Option(
            "endingTimestamp",
            "time",
            "",
            Use.BATCH,
            "the time to end at, exclusive for each record: milliseconds, ISO 8601 or -10m; comes before the other two",
        ),
        Option(
            "failOnDataLoss",
            "boolean",
            "true",
            Use.READ,
            "whether offsets that are gone or unreadable are an error; otherwise they are skipped with a warning",
        ),
        Option("minPartitions", "number", "", Use.READ, "at least so many tasks, unless there are fewer records"),
        Option("maxRecordsPerPartition", "number", "", Use.READ, "at most so many offsets a task"),
        Option(
            "maxBytesPerPartition",
            "size",
            "256m",
            Use.READ,
            "about how many bytes of the log a task reads; small partitions share one",
        ),
        Option("limit", "number", "", Use.BATCH, "so many records are read, partition after partition, by one task"),
        Option(
            "columns",
            "names",
            "",
            Use.READ,
            "the columns, in this order, instead of .schema(…): value string, offset; key and value may be string",
        ),
        Option(
            "maxOffsetsPerTrigger",
            "number",
            "",
            Use.STREAM,
            "at most so many offsets a micro-batch, shared in proportion to what partitions have; more only where "
            "there are more partitions",
        ),
        Option("maxBytesPerTrigger", "size", "", Use.STREAM, "about so many bytes of the log a micro-batch"),
        Option(
            "minOffsetsPerTrigger",
            "number",
            "",
            Use.STREAM,
            "no micro-batch before so many offsets are new, but see next",
        ),
        Option(
            "maxTriggerDelay",
            "duration",
            "15m",
            Use.STREAM,
            "how long minOffsetsPerTrigger may hold back what is there",
        ),
        Option("valueFormat", "json", "", Use.READ, "json: the schema names fields of the values"),
        Option(
            "mode",
            "permissive or failfast",
            "permissive",
            Use.READ,
            "with valueFormat, what becomes of a record that does not fit the schema: null fields, or an error",
        ),
        Option("fetch.maxBytes", "size", "4m", Use.READ, "about how many bytes one fetch brings, 92m at most"),
        Option("fetch.inFlight", "number", "4", Use.READ, "how many fetches a task has under way, 1000 at most"),
        Option(
            "fetch.timeoutMs",
            "duration",
            "120s",
            Use.READ,
            "how long a task tries when nothing comes, before Spark runs it again, and a stream between micro-batches",
            aliases=("kafkaConsumer.pollTimeoutMs",),
        ),
        Option(
            "fetchOffset.numRetries",
            "number",
            "3",
            Use.READ,
            "how often planning is tried again, if it may pass; a stream that has planned before tries for "
            "fetch.timeoutMs at least",
        ),
        Option("fetchOffset.retryIntervalMs", "duration", "1s", Use.READ, "how long planning waits in between"),
        Option(
            "verifyChecksums",
            "boolean",
            "true",
            Use.READ,
            "whether the CRC of every batch is checked; how it is built is checked in any case",
        ),
        Option(
            "isolation.level",
            "read_uncommitted or read_committed",
            "read_uncommitted",
            Use.READ,
            "read_committed leaves out records of transactions that were aborted or are open",
            aliases=("kafka.isolation.level",),
        ),
        Option(
            "includeHeaders",
            "boolean",
            "false",
            Use.ALL,
            "whether there is a column headers; in writing one is written unless this is false",
        ),
        Option("topic", "name", "", Use.WRITE, "where to write; comes before a column topic"),
        Option(
            "compression.type",
            "codec",
            "none",
            Use.WRITE,
            "none, gzip, snappy, lz4 or zstd",
            aliases=("kafka.compression.type",),
        ),
        Option(
            "batch.size",
            "size",
            "1m",
            Use.WRITE,
            "how large a batch of records becomes, within the topic's max.message.bytes",
            aliases=("kafka.batch.size",),
        ),
        Option(
            "delivery.timeout.ms",
            "time",
            "2m",
            Use.WRITE,
            "how long a task tries while nothing is acknowledged, or no broker tells of a topic",
            aliases=("kafka.delivery.timeout.ms",),
        ),
    )
}

EXPLAINED = {
    "path": "load() of format warmlog takes no path: name the topics with the option subscribe",
    "provider": "a table of format warmlog cannot be created, as Spark does not hand its options to the reader: "
    "CREATE TEMPORARY VIEW … USING warmlog OPTIONS (…) instead",
    "kafka.acks": "records are always written with acks=all, and on disk when a task is done: leave out kafka.acks",
    "kafka.enable.idempotence": "a task's attempt is always idempotent: leave out kafka.enable.idempotence",
    "kafka.group.id": "format warmlog reads without a consumer group: leave out kafka.group.id",
    "groupidprefix": "format warmlog reads without a consumer group: leave out groupIdPrefix",
}
"""Options that do not exist, in lower case, and what to say of them. Spark itself adds `path` when `load` is given one,
and `provider` in CREATE TABLE."""

SPARKS_OWN = {"checkpointlocation": Use.WRITE}
"""Options that are for Spark itself, in lower case, and when it hands them over nevertheless."""


def describe_options() -> str:
    """The table in Markdown."""
    lines = ["| option | type | default | for | what it says |", "|---|---|---|---|---|"]
    for option in OPTIONS.values():
        uses = ", ".join(
            use.name.lower() for use in (Use.BATCH, Use.STREAM, Use.WRITE) if use in option.use and use.name
        )
        names = " or ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = f"`{option.default}`" if option.default else ""
        lines.append(f"| {names} | {option.kind} | {default} | {uses} | {option.sentence} |")
    return "\n".join(lines) + "\n"
