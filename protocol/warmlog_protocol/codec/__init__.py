"""Compression, memory for large buffers, and the encoder of msgpack."""
