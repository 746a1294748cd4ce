"""CRC-32C (Castagnoli), the checksum of every record batch and producer snapshot.

`google_crc32c` computes it with the processor's own instruction, at several GB a second. Its check value: the CRC of
b"123456789" is 0xe3069283.
"""

from typing import Any

import google_crc32c

Piece = Any
"""What the library reads in place: `bytes`, or another buffer that nobody has to release, as a numpy array of bytes is
one. A memoryview is none."""


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC-32C of `data`. The library takes only `bytes`; any other buffer is copied once."""
    crc: int = google_crc32c.value(data if type(data) is bytes else bytes(data))
    return crc


def extend_crc32c(crc: int, data: Piece) -> int:
    """The CRC-32C of what `crc` was computed over, followed by `data`."""
    extended: int = google_crc32c.extend(crc, data)
    return extended
