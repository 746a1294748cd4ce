"""Kafka's wire protocol: its messages, and the frames of a broker's connections."""
