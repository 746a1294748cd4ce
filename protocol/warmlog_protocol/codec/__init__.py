"""Compression and CRC-32C."""
