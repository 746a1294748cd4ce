"""The files of one segment: their names, and renaming and deleting them together.

A name is the base offset in 20 digits and `.log`, `.index`, `.timeindex` or `.txnindex`; a suffix such as `.deleted`
comes after that. The `.log` is renamed and deleted first: without it, what is left of the others is removed at the next
start.
"""

from pathlib import Path

from warmlog_broker.storage.index.transaction_index import TransactionIndex
from warmlog_broker.storage.record.file_records import FileRecords
from warmlog_broker.storage.segment.segment_indexes import SegmentIndexes

LOG_KIND = ".log"
OFFSET_INDEX_KIND = ".index"
TIME_INDEX_KIND = ".timeindex"
TRANSACTION_INDEX_KIND = ".txnindex"
KINDS = (LOG_KIND, OFFSET_INDEX_KIND, TIME_INDEX_KIND, TRANSACTION_INDEX_KIND)


def segment_file_name(base_offset: int, kind: str, suffix: str = "") -> str:
    """The name of a segment's file; `kind` begins with a dot, `suffix` is empty or does."""
    return f"{base_offset:020d}{kind}{suffix}"


class SegmentFiles:
    """Where the files of one segment are. Whoever reads and writes them goes along with every move."""

    __slots__ = ("_indexes", "_records", "_transactions", "base_offset", "directory", "suffix")

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        suffix: str,
        records: FileRecords,
        indexes: SegmentIndexes,
        transactions: TransactionIndex,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self._records = records
        self._indexes = indexes
        self._transactions = transactions

    def path(self, kind: str) -> Path:
        return self.directory / segment_file_name(self.base_offset, kind, self.suffix)

    def change_suffix(self, old: str, new: str) -> None:
        """Renames the files, such as from "" to ".deleted": the .log first, and of the others those that exist."""
        if self.suffix != old:
            raise ValueError(f"{self._records.path} does not end with the suffix {old!r}")
        self.suffix = new
        self._records.rename_to(self.path(LOG_KIND))
        self._indexes.offset.rename_to(self.path(OFFSET_INDEX_KIND))
        self._indexes.time.rename_to(self.path(TIME_INDEX_KIND))
        self._transactions.rename_to(self.path(TRANSACTION_INDEX_KIND))

    def moved_to(self, directory: Path) -> None:
        """The partition's directory has been renamed to `directory`."""
        self.directory = directory
        self._records.moved_to(self.path(LOG_KIND))
        self._indexes.offset.moved_to(self.path(OFFSET_INDEX_KIND))
        self._indexes.time.moved_to(self.path(TIME_INDEX_KIND))
        self._transactions.moved_to(self.path(TRANSACTION_INDEX_KIND))

    def delete(self) -> None:
        """Unlinks all files, whichever there are, and raises the first error after having tried each."""
        first_error: OSError | None = None
        for delete in (
            self._records.delete,
            self._indexes.offset.delete,
            self._indexes.time.delete,
            self._transactions.delete,
        ):
            try:
                delete()
            except OSError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def close_handles(self) -> None:
        """Lets go of files and maps without changing a file: for a disk that has failed."""
        self._indexes.offset.close_handles()
        self._indexes.time.close_handles()
        self._transactions.close_handles()
        self._records.close_handles()
