"""CRC-32C (Castagnoli), the checksum of every record batch and producer snapshot.

The library computes it with the processor's own instruction and reads any buffer in place. Its check value: the
CRC of b"123456789" is 0xe3069283.
"""

from typing import Any

import crc32c as library

Piece = Any
"""Bytes, in any contiguous buffer: `bytes`, a memoryview, a numpy array of bytes."""


def crc32c(data: Piece, crc: int = 0) -> int:
    """The CRC-32C of what `crc` was computed over, if it is given, followed by `data`."""
    return library.crc32c(data, crc)
