"""Which partition a record goes to.

A key chooses by CRC-32 (zlib's, as in gzip), unsigned, modulo the number of partitions: librdkafka's default
`consistent_random`, so that records of one key from Python, Go, C or .NET clients of Kafka meet in one partition. (Java
clients use murmur2 and agree with this only when they are told to.) Records without a key, and with an empty one, as
librdkafka has it, stick to one partition for a batch and then move on to the next.
"""

from zlib import crc32


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key that is not empty."""
    return crc32(key) % partitions
