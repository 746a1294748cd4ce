"""Groups by Kafka's protocol: members of both kinds, committed offsets, and what tools ask."""
