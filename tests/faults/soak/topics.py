"""What is written: topics whose segments roll and go all the time, and one that is compacted."""

from warmlog import Admin

SEGMENT_BYTES = 4 * 1024 * 1024
RETENTION_BYTES = 32 * 1024 * 1024
PARTITIONS = 4
STREAMS = ("stream-0", "stream-1", "stream-2")
STATE = "state"
STATE_PARTITIONS = 2
STATE_KEYS = 5000
STATE_EVERY = 16
"""Each so many ticks one goes to the compacted topic."""
DISK_LIMIT_MIB = 10 * 1024

BROKER = {
    "log_retention_check_interval_ms": 1000,
    "log_flush_offset_checkpoint_interval_ms": 1000,
}


async def create(address: str) -> None:
    """Makes all of them."""
    async with Admin(address) as admin:
        for name in STREAMS:
            configs = {
                "segment.bytes": str(SEGMENT_BYTES),
                "retention.bytes": str(RETENTION_BYTES),
                "file.delete.delay.ms": "1000",
            }
            await admin.create_topic(name, partitions=PARTITIONS, configs=configs)
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "file.delete.delay.ms": "1000",
        }
        await admin.create_topic(STATE, partitions=STATE_PARTITIONS, configs=configs)
