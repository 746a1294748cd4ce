"""The clients of Kafka of a run that have processes of their own, which are killed and stopped."""

from faults.history.members import STATIC, Members

KAFKA_COPIES = "copies-by-kafka"
KAFKA_COPIERS = "copiers-by-kafka"
"""Their group."""
COPIERS = 2


class KafkaMembers(Members):
    """Members of a classic group."""

    program = "faults.history.kafka.member"


class KafkaCopiers(Members):
    """Two processes that copy: the first partition, and the others."""

    program = "faults.history.kafka.copier"

    def arguments(self, name: str, kind: str) -> list[str]:
        partitions = ["0"] if kind == STATIC else ["1", "2"]
        journal = str(self.directory / name)
        return [self.address, self.group, self.topic, journal, KAFKA_COPIES, f"copying-{kind}-by-kafka", *partitions]
