"""What a broker says of one partition in a Fetch response, for tests of its readers."""

from collections.abc import Sequence

from warmlog_protocol.messages import AbortedTransaction, FetchedPartition


def fetched_partition(
    high_watermark: int,
    *,
    aborted: Sequence[AbortedTransaction] = (),
    next_offset: int = -1,
    leader_epoch: int = 0,
    is_dense: bool = False,
    row_gaps_up_to: int = -1,
) -> FetchedPartition:
    """The part of a response about t-0, without an error."""
    return FetchedPartition(
        "t",
        0,
        0,
        "",
        high_watermark,
        high_watermark,
        0,
        leader_epoch,
        bytes(16),
        0,
        aborted_transactions=list(aborted),
        next_offset=next_offset,
        has_dense_offsets=is_dense,
        row_gaps_up_to=row_gaps_up_to,
    )
