"""The partition that a key chooses.

It is CRC-32 (zlib's, as in gzip), unsigned, modulo the number of partitions: librdkafka's default `consistent_random`,
so that Kafka clients in Python, Go, C and .NET put records of one key into the same partition. (Java clients use
murmur2 unless configured otherwise.) Records without a key, or with an empty one, go to one partition for the length of
a batch and then to the next, also as in librdkafka.
"""

from zlib import crc32


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key that is not empty."""
    return crc32(key) % partitions
