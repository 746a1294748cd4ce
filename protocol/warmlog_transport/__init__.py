"""asyncio connections to brokers: addresses, metadata, leaders, retries."""
