"""The partition that a key chooses.

It is CRC-32 (zlib's, as in gzip), unsigned, modulo the number of partitions: librdkafka's default `consistent_random`,
so that Kafka clients in Python, Go, C and .NET put records of one key into the same partition. (Java clients use
murmur2 unless configured otherwise.) Records without a key, or with an empty one, go to one partition for the length of
a batch and then to the next, also as in librdkafka.
"""

from collections.abc import Callable
from zlib import crc32

from warmlog.errors import PartitionerFailed

Partitioner = Callable[[bytes | None, int], int]
"""Called with a record's key and the number of partitions."""


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key that is not empty."""
    return crc32(key) % partitions


def chosen_partition(partitioner: Partitioner, key: bytes | None, partitions: int) -> int:
    """The partition that the user's function chooses. PartitionerFailed if it raises, or returns something else."""
    try:
        partition = partitioner(key, partitions)
    except Exception as error:
        raise PartitionerFailed(f"the partitioner raised {error!r} for key {key!r}") from error
    if type(partition) is not int or not 0 <= partition < partitions:
        raise PartitionerFailed(
            f"the partitioner returned {partition!r} for key {key!r}: an int from 0 to {partitions - 1} expected"
        )
    return partition
