"""A transactional producer of Kafka's protocol: each request is a call, so that a test decides about every step."""

from typing import Any

from kafka_client import KafkaClient, produce_fields, rows
from warmlog_protocol.kafka.schema import API

NEWEST = {
    "InitProducerId": 4,
    "AddPartitionsToTxn": 3,
    "AddOffsetsToTxn": 3,
    "Produce": 10,
    "TxnOffsetCommit": 3,
    "EndTxn": 3,
}
"""Version 1 of transactions, as most clients speak it."""
JAVA_3_9 = {**NEWEST, "InitProducerId": 5, "AddOffsetsToTxn": 4, "Produce": 11, "TxnOffsetCommit": 4, "EndTxn": 4}
OLDEST = {**dict.fromkeys(NEWEST, 0), "Produce": 3}
VERSION_2 = {**JAVA_3_9, "Produce": 12, "TxnOffsetCommit": 5, "EndTxn": 5}


class KafkaTransactions:
    """One incarnation of a producer. Each call returns the error code."""

    def __init__(self, client: KafkaClient, transactional_id: str, versions: dict[str, int] = NEWEST) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.versions = versions
        self.producer = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}

    @property
    def owner(self) -> dict[str, int]:
        return {"producer_id": self.producer[0], "producer_epoch": self.producer[1]}

    def initialise(self, *, timeout_ms: int = 60_000) -> int:
        """As a new producer, or, with an id and epoch already, as the one that has them."""
        given = self._call("InitProducerId", transaction_timeout_ms=timeout_ms, **self.owner)
        if not given.error_code:
            self.producer = given.producer_id, given.producer_epoch
            self._sequences.clear()
        return int(given.error_code)

    def add(self, topic: str, *partitions: int) -> list[int]:
        """AddPartitionsToTxn: an error code for each."""
        request = API["AddPartitionsToTxn"].request
        fields = {f"v3_and_below_{name}": value for name, value in self.owner.items()}
        told = self.client.call(
            "AddPartitionsToTxn",
            self.versions["AddPartitionsToTxn"],
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_topics=[request.AddPartitionsToTxnTopic(topic, list(partitions))],
            **fields,
        )
        (of_topic,) = told.results_by_topic_v3_and_below
        return [each.partition_error_code for each in of_topic.results_by_partition]

    def send(self, topic: str, *values: bytes, partition: int = 0, sequence: int | None = None) -> int:
        known = self._sequences.get((topic, partition), 0)
        batch = rows(
            *values,
            base_sequence=known if sequence is None else sequence,
            is_transactional=True,
            **self.owner,
        )
        fields = produce_fields(topic, batch, partition) | {"transactional_id": self.transactional_id}
        told = self.client.call("Produce", self.versions["Produce"], records=batch, **fields)
        code = int(told.responses[0].partition_responses[0].error_code)
        if not code and sequence is None:
            self._sequences[topic, partition] = known + len(values)
        return code

    def add_offsets(self, group: str) -> int:
        return int(self._call("AddOffsetsToTxn", group_id=group, **self.owner).error_code)

    def commit_offset(self, group: str, topic: str, offset: int, **member: Any) -> int:
        request = API["TxnOffsetCommit"].request
        part = request.TxnOffsetCommitRequestPartition(0, offset, committed_metadata="text")
        topics = [request.TxnOffsetCommitRequestTopic(topic, [part])]
        told = self._call("TxnOffsetCommit", group_id=group, topics=topics, **self.owner, **member)
        return int(told.topics[0].partitions[0].error_code)

    def end(self, *, commits: bool) -> int:
        ended = self._call("EndTxn", committed=commits, **self.owner)
        if not ended.error_code and self.versions["EndTxn"] >= VERSION_2["EndTxn"]:
            self.producer = ended.producer_id, ended.producer_epoch
            self._sequences.clear()
        return int(ended.error_code)

    def _call(self, name: str, **fields: Any) -> Any:
        return self.client.call(name, self.versions[name], transactional_id=self.transactional_id, **fields)
