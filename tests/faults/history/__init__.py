"""A checker of histories: real clients work against a real broker while faults happen, and then everything is compared.

Producers (idempotent, not, and with keys for a compacted topic), readers (one that begins again and again, one that
lives through everything), a group, and admins that create and delete topics, give up records and move partitions.
Transactions: producers that commit and abort, readers of both isolation levels, and pairs of a consumer and a producer
that copy what is committed (`transactional`). Clients of Kafka beside them (`kafka`): idempotent producers, one of
transactions of version 1, processes that copy with such ones, a classic group. Not part of it: altered settings.

`target` is the broker with what surrounds it (a disk whose power can be cut, proxies whose connections can), `nemesis`
what can happen to it, `workload` who works with it, `notes` what they saw, `final` what is there in the end, and
`checking` what must be true of that (`group_checking` of the group); after a restart everything is read
once more, and must be the same.
`python -m faults.history --help` runs it by hand.
"""
