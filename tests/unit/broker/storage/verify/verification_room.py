"""Partitions to verify: Kafka's sample and logs written here, and what was found in them."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from unit.broker.storage.log_room import LogRoom
from warmlog_broker.storage.directory.partition_files import pack_partition_metadata
from warmlog_broker.storage.verify.partition import verify_partition
from warmlog_broker.storage.verify.report import Report
from warmlog_broker.storage.verify.segment import Expectations, LogWalk, pause

FLIGHTS, TRANSFERS = "flights-0", "transfers-0"
FIRST = "00000000000000000000"
PATIENT = pause


def verify(
    directory: Path, expectations: Expectations | None = None, *, pause: Callable[[], None] = lambda: None
) -> tuple[Report, LogWalk]:
    report = Report()
    summary = verify_partition(directory, expectations or Expectations(), report, pause=pause)
    return report, summary


def texts(report: Report) -> list[str]:
    return [str(finding) for finding in report.findings]


def only_text(report: Report) -> str:
    (text,) = texts(report)
    return text


def room_in(root: Path) -> LogRoom:
    room = LogRoom(root)
    room.path("partition.metadata").write_bytes(pack_partition_metadata(UUID(int=7)))
    return room
