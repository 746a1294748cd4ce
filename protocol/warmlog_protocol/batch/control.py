"""Control batches: the markers that end transactions, and records of Kafka's own metadata log. Always rows.

A control batch has attributes bit 5, holds one record and is never delivered, though its offset counts. Big-endian::

    key    i16 version = 0 | i16 type         (ControlType)
    value  i16 version = 0 | i32 epoch of the transaction coordinator          for ABORT and COMMIT

Later versions may be longer; their known fields are at the positions of version 0.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from warmlog_protocol.errors import CorruptBatch

_KEY = Struct(">hh")
_END_TXN = Struct(">hi")


class ControlType(IntEnum):
    """The second field of a control record's key."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6

    @property
    def is_end_txn(self) -> bool:
        return self is ControlType.ABORT or self is ControlType.COMMIT


_TYPES = {control_type.value: control_type for control_type in ControlType}


class EndTxnMarker(NamedTuple):
    """The record that ends a producer's transaction in one partition."""

    control_type: ControlType
    coordinator_epoch: int


def read_control_type(key: bytes | None) -> ControlType:
    """Return the type in a control record's key; UNKNOWN for one of a later version. CorruptBatch if malformed."""
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch(f"control record's key {key!r}: at least {_KEY.size} bytes expected")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"control record's version {version} is negative")
    return _TYPES.get(number, ControlType.UNKNOWN)


def read_end_txn_marker(key: bytes | None, value: bytes | None) -> EndTxnMarker:
    """The marker in a control record of type ABORT or COMMIT. CorruptBatch for any other record."""
    control_type = read_control_type(key)
    if not control_type.is_end_txn:
        raise CorruptBatch(f"control record of type {control_type.name} ends no transaction")
    if value is None or len(value) < _END_TXN.size:
        raise CorruptBatch(f"end of transaction {value!r}: at least {_END_TXN.size} bytes expected")
    version, coordinator_epoch = _END_TXN.unpack_from(value)
    if version < 0:
        raise CorruptBatch(f"end of transaction: version {version} is negative")
    return EndTxnMarker(control_type, coordinator_epoch)


def pack_end_txn_marker(marker: EndTxnMarker) -> tuple[bytes, bytes]:
    """Key and value of the marker's control record."""
    return _KEY.pack(0, marker.control_type), _END_TXN.pack(0, marker.coordinator_epoch)
