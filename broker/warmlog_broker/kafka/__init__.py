"""Kafka's clients: requests of their protocol become those of warmlog's handlers, and the responses theirs.

Imported only if a listener speaks Kafka's protocol.
"""
