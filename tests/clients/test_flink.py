"""Flink: a source and an exactly-once sink in one process, which is killed and resumed from its newest checkpoint."""

import random
from pathlib import Path

from clients.java import compile_class, java, running
from clients.served import Served
from waiting import wait_until

CLIENT = "Flink 2.2, flink-connector-kafka 5.0"
KILLS = 10
RECORDS_A_KILL = 550
RECORDS = (KILLS + 1) * RECORDS_A_KILL
TIMEOUT_S = 120.0


def newest_checkpoint(directory: Path) -> list[Path]:
    """The newest that is complete, if there is one."""
    complete = sorted(directory.glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime_ns)
    return [path.parent for path in complete[-1:]]


def test_a_copy_is_exact_after_its_process_was_killed(served: Served, tmp_path: Path) -> None:
    served.create("from-flink", partitions=2)
    served.create("to-flink", partitions=2)
    compile_class("flink", "Copy")
    chance = random.Random(1)
    values = [b"%d" % number for number in range(RECORDS)]
    for first in range(0, RECORDS, RECORDS_A_KILL):
        served.write("from-flink", *values[first : first + RECORDS_A_KILL])
        arguments = [served.address, "from-flink", "to-flink", tmp_path, *newest_checkpoint(tmp_path)]
        is_last = first + RECORDS_A_KILL >= RECORDS
        wanted = RECORDS if is_last else first + chance.randrange(1, RECORDS_A_KILL)
        with running(java("flink", "Copy", *arguments), tmp_path / "log"):
            wait_until(lambda wanted=wanted: len(served.read("to-flink")) >= wanted, timeout_s=TIMEOUT_S)
    assert sorted(int(each.value or b"-1") for each in served.read("to-flink")) == list(range(RECORDS))
