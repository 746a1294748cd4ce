"""The asyncio producer: batches, partitions, retries, delivery."""
