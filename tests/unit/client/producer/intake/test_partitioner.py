"""Keys choose the partitions that librdkafka's `consistent_random` chooses."""

import pytest

from warmlog.producer.intake.partitioner import partition_of_key

# The check value of CRC-32 for b"123456789" is in every catalogue of CRCs; the others were computed with `gzip`.
CRC32 = {b"123456789": 0xCBF43926, b"a": 0xE8B7BE43, b"\x00": 0xD202EF8D, b"key": 0x8A90ABA9}


@pytest.mark.parametrize(("key", "crc"), CRC32.items())
@pytest.mark.parametrize("partitions", [1, 2, 3, 17, 1000])
def test_a_key_chooses_the_partition_of_its_crc_32(key: bytes, crc: int, partitions: int) -> None:
    assert partition_of_key(key, partitions) == crc % partitions
