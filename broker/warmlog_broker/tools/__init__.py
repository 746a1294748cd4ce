"""Offline work on the data directories of a stopped broker: adopt Kafka's, rebuild indexes, verify."""
