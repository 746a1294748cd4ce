"""Every option of format("warmlog"): its name, type, default and meaning, and whether it is for reading or writing.

Options that Spark's Kafka connector has too have its names and meanings, so that porting a Kafka job takes only another
format name. A test writes the page of the documentation from this table.
"""

import re
from collections.abc import Iterator
from enum import Flag, auto
from typing import NamedTuple


class Use(Flag):
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


_TABLE = """
bootstrap.servers or kafka.bootstrap.servers | host:port, … | all
    host:port of a broker; if several, separated by commas, they are tried in turn
subscribe | names | read
    the topics to read, separated by commas
subscribePattern | pattern | read
    a Python regular expression that matches whole topic names
assign | JSON | read
    the partitions to read: {"topic": [0, 1]}
partitions | numbers | batch
    read only these partitions of each topic: 0,3-7
startingOffsets | offsets | read | earliest
    where to start: earliest, latest (streams), committed (what the option group has committed, or the earliest if
    that is nothing), an offset, a tail like -100, a time like 2026-11-20T08:00:00Z or -10m, or JSON by topic and
    partition, where -2 is the earliest and -1 the latest
group | name | read
    the consumer group of startingOffsets=committed and of commitOffsets
commitOffsets | boolean | stream | false
    whether each micro-batch that is done is committed to the option group, which must have no members
startingOffsetsByTimestamp | JSON | read
    where to start, by topic and partition: milliseconds or any time that startingTimestamp takes; overrides
    startingOffsets
startingTimestamp | time | read
    the time to start at: milliseconds, ISO 8601 or -10m; a batch reads only records of that time or later, a stream
    starts at the first of them and reads all that follow; overrides the other two
startingOffsetsByTimestampStrategy | error or latest | read
    a partition that has no record at or after its starting time is an error, the default in a stream, or is read from
    its end, the default in a batch, where it is empty
endingOffsets | offsets | batch | latest
    where to end, exclusive: latest, an offset, a tail like -100, a time, or JSON by topic and partition, where -1 is
    the latest
endingOffsetsByTimestamp | JSON | batch
    where to end, exclusive, by topic and partition: milliseconds or any time that endingTimestamp takes; overrides
    endingOffsets
endingTimestamp | time | batch
    the time to end at, exclusive for each record: milliseconds, ISO 8601 or -10m; overrides the other two
timeZone | zone | read
    the zone of times without a UTC offset, Europe/Berlin or +01:00, which are refused otherwise: Spark does not tell a
    data source in Python its session's; give spark.conf.get("spark.sql.session.timeZone")
failOnDataLoss | boolean | read | true
    whether offsets that are gone or unreadable are an error; otherwise they are skipped with a warning
minPartitions | number | read
    the smallest number of tasks, unless there are fewer records
maxRecordsPerPartition | number | read
    the most offsets that a task reads
maxBytesPerPartition | size | read | 256m
    about how many bytes of the log a task reads; small partitions share a task
limit | number | batch
    read this many records, partition after partition, in one task
columns | names | read
    the columns, in this order, instead of .schema(…): value string, offset; key and value may be string
maxOffsetsPerTrigger | number | stream
    the most offsets of a micro-batch, divided among partitions in proportion to their new offsets; at least one for
    each partition
maxBytesPerTrigger | size | stream
    about how many bytes of the log a micro-batch reads
minOffsetsPerTrigger | number | stream
    wait until this many offsets are new, for maxTriggerDelay at most
maxTriggerDelay | duration | stream | 15m
    how long minOffsetsPerTrigger may delay a micro-batch
valueFormat | json | read
    json: the schema names fields of the values
mode | permissive or failfast | read | permissive
    with valueFormat, what becomes of a record that does not fit: wrong fields are null, or it is an error
fetch.maxBytes | size | read | 4m
    about how many bytes one fetch returns, 92m at most
fetch.inFlight | number | read | 4
    how many fetches a task has in flight, 1000 at most
fetch.timeoutMs or kafkaConsumer.pollTimeoutMs | duration | read | 120s
    how long a task, or a stream between micro-batches, retries without receiving anything before it fails
fetchOffset.numRetries | number | read | 3
    how often planning is retried after a retriable error; a stream that has planned before retries for at least
    fetch.timeoutMs
fetchOffset.retryIntervalMs | duration | read | 1s
    how long planning waits between tries
verifyChecksums | boolean | read | true
    whether the CRC of every batch is checked; its structure is always checked
isolation.level or kafka.isolation.level | read_uncommitted or read_committed | read | read_committed
    read_committed leaves out records of aborted and open transactions, and ends before the first open one
rack or kafka.client.rack | name | read
    where the tasks run, as `rack` of a broker: each partition is read from an in-sync replica there, if there is one
includeHeaders | boolean | all | false
    whether to read the column `headers`; when writing, whether to write it (default there: true)
topic | name | write
    where to write; overrides a column topic
compression.type or kafka.compression.type | codec | write | none
    none, gzip, snappy, lz4 or zstd
batch.size or kafka.batch.size | size | write | 1m
    the largest batch of records, within the topic's max.message.bytes
delivery.timeout.ms or kafka.delivery.timeout.ms | time | write | 2m
    how long a task retries without an acknowledgement, or without metadata of a topic, and the driver its commit
delivery | exactly-once or at-least-once | write | exactly-once
    exactly-once: readers of committed records see each row once, after the whole write; at-least-once: at once, and
    again what Spark runs again
txnAppId | name | write
    with txnVersion, names a batch to a topic, so that it can be run again: the version that was committed last is not
    written twice, a lower one is an error
txnVersion | number | write
    the number of the batch of txnAppId; it rises from one to the next
transactionTimeoutMs | duration | write | 15m
    how long a write may stay open while no task of it runs, 24h at most; then it is aborted
username | name | all
    the user to authenticate as, if brokers authenticate their clients
password | text | all
    the user's password; Spark redacts options of such names
sasl.mechanism or kafka.sasl.mechanism | name | all | SCRAM-SHA-256
    SCRAM-SHA-256 or SCRAM-SHA-512
ssl | boolean | all | false
    whether to connect by TLS; its files must be on every worker
ssl.cafile | path | all
    a PEM file with the issuers of brokers' certificates; by default those that the system trusts
ssl.certfile | path | all
    a PEM file with the client's certificate, if brokers ask for one
ssl.keyfile | path | all
    a PEM file with its key, if that is not in ssl.certfile
ssl.keypassword | text | all
    the password of the key; Spark redacts options of such names
ssl.check.hostname | boolean | all | true
    whether a broker's certificate must be for the host that was connected to
"""
"""For each option a line with its names, type, use and default, and then its meaning."""


def _options() -> Iterator[Option]:
    for row in re.split(r"\n(?=\S)", _TABLE.strip()):
        head, *lines = row.split("\n")
        names, kind, use, *default = head.split(" | ")
        name, *aliases = names.split(" or ")
        sentence = " ".join(line.strip() for line in lines)
        yield Option(name, kind, Use[use.upper()], sentence, "".join(default), tuple(aliases))


OPTIONS = {option.name: option for option in _options()}

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
