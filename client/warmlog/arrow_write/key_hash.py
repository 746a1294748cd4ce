"""CRC-32 of many keys at once, by numpy: the same numbers as zlib's, without a Python object per key.

CRC-32 is linear over GF(2), except for a constant that depends only on the length: a key's CRC is that of as many zero
bytes, XORed with the contribution of each byte, which depends on its value and on the number of bytes after it. So the
keys are aligned at their ends, and one table look-up and one XOR handle the same position in all of them.

Keys longer than LONGEST_BYTES go through zlib one by one: for these the cost of a call does not matter.
"""

from functools import cache
from typing import Any
from zlib import crc32

import numpy as np

LONGEST_BYTES = 64
_POLYNOMIAL = 0xEDB88320

Array = Any
"""A numpy array; numpy's own types would add little."""


def crc32_of_keys(offsets: Array, content: Array) -> Array:
    """Return the CRC-32, as uint32, of each key: key i is `content[offsets[i] : offsets[i + 1]]`."""
    count = len(offsets) - 1
    if count < 1:
        return np.zeros(0, np.uint32)
    lengths = np.diff(offsets)
    longest, shortest = int(lengths.max()), int(lengths.min())
    if longest == shortest <= LONGEST_BYTES:
        return _alike(content[int(offsets[0]) : int(offsets[-1])], count, longest)
    crcs = np.empty(count, np.uint32)
    is_short = lengths <= LONGEST_BYTES
    crcs[is_short] = _short(content, offsets[1:][is_short], lengths[is_short])
    is_long = ~is_short
    if is_long.any():
        starts, ends = offsets[:-1][is_long].tolist(), offsets[1:][is_long].tolist()
        crcs[is_long] = [crc32(content[start:end]) for start, end in zip(starts, ends, strict=True)]
    return crcs


def _alike(content: Array, count: int, length: int) -> Array:
    """CRCs of `count` adjacent keys of `length` bytes each."""
    crcs = np.full(count, _of_zeros()[length], np.uint32)
    columns = content.reshape(count, length)
    for following in range(length):
        crcs ^= _looked_up(following, columns[:, length - 1 - following])
    return crcs


def _short(content: Array, ends: Array, lengths: Array) -> Array:
    """CRCs of keys that end at `ends`. They are sorted by length, so those with one more byte come last."""
    order = np.argsort(lengths.astype(np.uint8), kind="stable")
    ends, lengths = ends[order], lengths[order]
    crcs = _of_zeros()[lengths]
    for following in range(int(lengths[-1]) if len(lengths) else 0):
        first = int(np.searchsorted(lengths, following, side="right"))
        crcs[first:] ^= _looked_up(following, content[ends[first:] - (following + 1)])
    unsorted = np.empty_like(crcs)
    unsorted[order] = crcs
    return unsorted


def _looked_up(following: int, column: Array) -> Array:
    """The contribution of each byte of `column`. All are within the table; mode="clip" halves the time."""
    return _contribution(following).take(column, mode="clip")


@cache
def _of_zeros() -> Array:
    """The CRC of 0 to LONGEST_BYTES zero bytes."""
    return np.array([crc32(bytes(length)) for length in range(LONGEST_BYTES + 1)], np.uint32)


@cache
def _contribution(following: int) -> Array:
    """The contribution of a byte, by its value, if `following` bytes come after it."""
    if following == 0:
        table = np.arange(256, dtype=np.uint32)
        for _ in range(8):
            table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
        return table
    nearer = _contribution(following - 1)
    return (nearer >> 8) ^ _contribution(0)[nearer & 0xFF]
