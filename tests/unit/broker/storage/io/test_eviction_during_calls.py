"""A file may be closed by OpenFiles, for another thread, at any moment: not while a system call uses its descriptor."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmlog_broker.storage.index.transaction_index import AbortedTxn, TransactionIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.batch.header import CRC_START

BATCH = encode_batch([b"value"], timestamps_ms=[1])
ENTRY = AbortedTxn(1, 0, 3, 4)


def evicting(let_go: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, after another thread has had the file closed."""

    def evict_and_call(*arguments: Any) -> Any:
        let_go()
        return call(*arguments)

    return evict_and_call


def test_a_base_offset_is_read_from_a_file_that_is_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = FileRecords.open(tmp_path / "00000000000000000000.log", OpenFiles())
    records.append(BATCH[:CRC_START], BATCH[CRC_START:])
    records.mark_synced(records.writes)
    monkeypatch.setattr("warmlog_broker.storage.segment.file_records._pread", evicting(records.let_go, os.pread))
    assert records.base_offset_at(0) == 0
    records.close()


@pytest.mark.parametrize("name", ["pread", "fstat", "fdatasync"])
def test_a_transaction_index_is_used_while_it_is_evicted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "00000000000000000000.txnindex"
    first = TransactionIndex(path, 0, OpenFiles())
    first.append(ENTRY)
    first.close()
    index = TransactionIndex(path, 0, OpenFiles())
    monkeypatch.setattr(os, name, evicting(index.let_go, getattr(os, name)))
    assert list(index) == [ENTRY]
    index.append(AbortedTxn(1, 4, 7, 8))
    index.flush()
    index.sanity_check()
    index.close()
