"""Transactions as a pure state machine over the topic `__transactions`."""
