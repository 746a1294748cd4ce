"""The asyncio producer: batches, partitions, retries, delivery."""

from warmlog.producer.producer import Producer

__all__ = ["Producer"]
