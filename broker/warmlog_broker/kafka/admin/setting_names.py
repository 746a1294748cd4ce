"""Names of Kafka's settings: those that mean something here under another name, and those that mean nothing here.

https://kafka.apache.org/documentation/#topicconfigs and #brokerconfigs
"""

from collections.abc import Mapping

BROKER_NAMES: Mapping[str, str] = {
    "broker.rack": "rack",
    "compression.type": "compression.type",
    "connections.max.reauth.ms": "sasl.session.lifetime.ms",
    "follower.replication.throttled.rate": "cluster.refill.bytes.per.second",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.preallocate": "preallocate",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
    "min.insync.replicas": "min.insync.replicas",
}
"""What Kafka calls a setting of the broker, or there the default of a topic's setting, and that setting."""
FOREIGN_TOPIC_SETTINGS: Mapping[str, str] = {
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "3",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "message.downconversion.enable": "true",
    "message.format.version": "3.0-IV1",
    "message.timestamp.difference.max.ms": "9223372036854775807",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "unclean.leader.election.enable": "false",
}
"""Settings of a topic without an effect on one broker, and their defaults: taken, and shown with the default."""
FOREIGN_BROKER_SETTINGS: Mapping[str, str] = {
    "delete.topic.enable": "true",
    "inter.broker.protocol.version": "3.9",
    "log.message.format.version": "3.0-IV1",
    "unclean.leader.election.enable": "false",
}
"""Settings of the broker that tools look for, as they are here."""
REPLICATION_FACTORS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)
"""The same, of topics that are created without a number of replicas."""
FOREIGN_DYNAMIC_SETTINGS: frozenset[str] = frozenset(
    {
        "background.threads",
        "leader.replication.throttled.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "max.connection.creation.rate",
        "metric.reporters",
        "min.insync.replicas",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "principal.builder.class",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "unclean.leader.election.enable",
    }
)
"""Settings of the broker that Kafka lets clients change and that have no effect here: taken, and not shown."""
