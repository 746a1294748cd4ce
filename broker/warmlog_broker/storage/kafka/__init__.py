"""A stopped Kafka's data directory, read and copied."""
