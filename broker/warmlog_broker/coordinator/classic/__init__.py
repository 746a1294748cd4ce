"""Kafka's classic protocol of groups, as a pure state machine: members join, one of them assigns, and all sync."""
