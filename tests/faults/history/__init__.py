"""A checker of histories: real clients work against a real broker while faults happen, and then everything is compared.

Producers (idempotent, not, and with keys for a compacted topic), readers (one that begins again and again, one that
lives through everything), and admins that create and delete topics, give up records and move partitions. Not part of
it: transactions and altered settings, which clients cannot have yet.

`target` is the broker with what surrounds it (a disk whose power can be cut, proxies whose connections can), `nemesis`
what can happen to it, `workload` who works with it, `notes` what they saw, `final` what is there in the end, and
`checking` what must be true of that; after a restart everything is read once more, and must be the same.
`python -m faults.history --help` runs it by hand.
"""
