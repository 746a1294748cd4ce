"""What is done to a batch whose records the broker looks at: on compacted topics, and where it packs batches itself.

Elsewhere a batch is stored as it came, its body unseen. Here the body is decoded and must be well-formed; on a
compacted topic every record needs a key; and unless `compression.type` is `producer` the batch is packed by the topic's
codec. Offsets, sequences, timestamps and magic stay. It takes up to some milliseconds for each batch, in any thread.
"""

from collections.abc import Iterable
from itertools import islice

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.record.validation import CheckedBatch, sealed
from warmlog_protocol.batch import Columns, RecordBatch, pack_header, recompress_batch
from warmlog_protocol.batch.header import CRC_START, HEADER_BYTES
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from warmlog_protocol.errors import CorruptBatch, InvalidRecord, MessageTooLarge

MOST_NAMED = 10
"""How many records without a key an error names."""


def prepare_batch(
    batch: CheckedBatch, config: LogConfig, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> CheckedBatch:
    """The batch as it goes into the log of a topic with these settings.

    InvalidRecord for a body that is malformed and, on a compacted topic, for records without a key; MessageTooLarge
    when the batch has become larger than max.message.bytes.
    """
    whole = memoryview(pack_header(batch.header)[:CRC_START] + batch.covered)
    record_batch = RecordBatch(batch.header, whole, max_decompressed_bytes)
    try:
        columns = record_batch.columns
        if config.is_compacted:
            _check_keys(columns)
        codec = config.codec
        if codec is None or codec is batch.header.codec:
            return batch
        packed = recompress_batch(record_batch, codec, max_decompressed_bytes=max_decompressed_bytes)
    except CorruptBatch as error:
        raise InvalidRecord(f"the batch's body of {len(whole) - HEADER_BYTES} bytes: {error}") from error
    if len(packed) > config.max_message_bytes:
        raise MessageTooLarge(
            f"a batch of {len(packed)} bytes once it is packed by compression.type={config.compression_type}, "
            f"max.message.bytes allows {config.max_message_bytes}"
        )
    return sealed(packed)


def _check_keys(columns: Columns) -> None:
    lengths = columns.key_lengths
    if lengths is not None and not lengths.zeros():
        return
    # Counted, not listed: a few bytes can say that there are millions of records without a key.
    without: Iterable[int] = range(columns.count)
    if lengths is not None:
        without = (index for index, length in enumerate(lengths) if not length)
    count = columns.count if lengths is None else lengths.zeros()
    named = ", ".join(map(str, islice(without, MOST_NAMED))) + (", …" if count > MOST_NAMED else "")
    raise InvalidRecord(
        f"cleanup.policy=compact keeps the last value of each key, and of {columns.count} records {count} have none: "
        f"at index {named}"
    )
