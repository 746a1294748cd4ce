"""Check and recompress the body of a batch, on compacted topics and if `compression.type` is not `producer`.

On other topics a batch is stored as it came, its body unread. Here the body is decoded and must be well-formed; on a
compacted topic each record needs a key; and unless `compression.type` is `producer` the batch is compressed with the
topic's codec. Offsets, sequences, timestamps and magic stay. It takes up to some milliseconds a batch, in any thread.

On all topics a batch of rows may leave its max timestamp at -1, as Sarama does before 1.45.1: it gets that of its
records here. Kafka computes it of every batch; here any other is believed, for which no body needs to be read.
"""

import sys

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.log.validation import CheckedBatch, sealed
from warmlog_protocol.batch import NeedsMemory, RecordBatch, pack_header, recompress_batch, seal_batch
from warmlog_protocol.batch.header import CRC_START, HEADER_BYTES, MAGIC_ROWS, NO_TIMESTAMP
from warmlog_protocol.batch.rows import BYTES_A_ROW
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from warmlog_protocol.errors import CorruptBatch, InvalidRecord, MessageTooLarge

MAX_NAMED_RECORDS = 10
"""How many records without a key an error message names."""
MAX_REFUSED_RECORDS = 1_000
"""Up to how many of them the error has the indexes of."""


def prepare_batch(
    batch: CheckedBatch,
    config: LogConfig,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    *,
    memory_bytes: int = sys.maxsize,
) -> CheckedBatch:
    """Return the batch as it goes into the log of a topic with these settings.

    InvalidRecord for a malformed body and, on a compacted topic, for records without a key; MessageTooLarge if the
    batch has become larger than max.message.bytes. NeedsMemory, before anything is done, if it takes more than
    `memory_bytes`: the decompressed body and, if it is compressed again, as much for the result.
    """
    header = batch.header
    whole = memoryview(pack_header(header)[:CRC_START] + batch.covered)
    record_batch = RecordBatch(header, whole, max_decompressed_bytes)
    codec = config.codec
    is_repacked = codec is not None and codec is not header.codec
    try:
        copies = 2 if is_repacked else 1
        try:
            record_batch.unpack(memory_bytes // copies)
        except NeedsMemory as error:
            raise NeedsMemory(copies * error.size_bytes) from None
        count, first = record_batch.null_keys(MAX_REFUSED_RECORDS)
        if config.is_compacted:
            _check_compactable(header.record_count, count, first, max_decompressed_bytes)
        if header.magic == MAGIC_ROWS and header.max_timestamp_ms == NO_TIMESTAMP:
            largest_ms = record_batch.largest_time(header.base_offset)
            record_batch.header = header._replace(max_timestamp_ms=largest_ms)
        if codec is None or not is_repacked:
            if record_batch.header is header:
                return batch
            return sealed(seal_batch(record_batch.header, batch.covered[HEADER_BYTES - CRC_START :]))
        packed = recompress_batch(record_batch, codec, max_bytes=config.max_message_bytes)
    except CorruptBatch as error:
        raise InvalidRecord(f"the batch's body of {len(whole) - HEADER_BYTES} bytes: {error}") from error
    except MessageTooLarge as error:
        raise MessageTooLarge(
            f"{error}: that is compression.type={config.compression_type}, max.message.bytes allows "
            f"{config.max_message_bytes}"
        ) from None
    return sealed(packed)


def _check_compactable(records: int, without_key: int, first: list[int], max_decompressed_bytes: int) -> None:
    if without_key:
        named = ", ".join(map(str, first[:MAX_NAMED_RECORDS])) + (", …" if without_key > MAX_NAMED_RECORDS else "")
        raise InvalidRecord(
            f"on a topic with cleanup.policy=compact each record needs a key, but of {records} records {without_key} "
            f"have none: at index {named}",
            first if without_key <= MAX_REFUSED_RECORDS else (),
        )
    if records * BYTES_A_ROW > max_decompressed_bytes:
        raise InvalidRecord(
            f"{records} records in one batch: a compacted topic takes at most {max_decompressed_bytes // BYTES_A_ROW}"
        )
