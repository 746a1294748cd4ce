"""`make bench-start`: how long programs take to start (`programs`), and a broker with many segments to start and stop.

A data directory with 1,000 partitions of 10 segments each, left by a clean stop, is started and stopped again; the
other runs are those of an unclean start, of opening the logs alone, and of one log with a large active segment after
`kill -9`. Prints tables and writes build/bench-start.json.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.measurement import scratch_directory
from benchmarks.programs import IDLE_MIB, idle_mib, measure_programs, table_of_programs
from benchmarks.restart import restarts
from broker_process import BrokerProcess
from opened_logs import opened_logs
from processor_time import processor_time
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import commit, lock_and_read
from warmlog_broker.data_dirs.loader import LogOpener
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import check_batch
from warmlog_protocol.batch import encode_batch

VALUE_BYTES = 1000
MAX_OPEN_FILES = 1024
PROGRAM_ROUNDS = 9
"""Programs take fractions of a second: more rounds than of brokers with many segments."""


class Size(NamedTuple):
    """What is started."""

    partitions: int
    segments: int

    @property
    def text(self) -> str:
        return f"{self.partitions} partitions of {self.segments} segments"


def fill(data_dir: Path, size: Size) -> None:
    """Makes the directory as a broker leaves it that was stopped cleanly."""
    config = BrokerConfig(data_dir=str(data_dir), max_open_files=MAX_OPEN_FILES)
    directories, metadata_log = lock_and_read(config)
    directory = directories.first
    opener = LogOpener(OpenFiles(config.max_open_files))
    topic = TopicCreated("bench", bytes(15) + b"\x01", size.partitions, {})
    commit(metadata_log, [topic])
    ends, offsets = {}, {}
    for index in range(size.partitions):
        log = opener.create(directory, topic, index, config.topic_defaults)
        _append_segments(log, size.segments)
        end = log.close(sync=False)
        assert end is not None
        ends[log.key], offsets[log.key] = end, log.offsets
    os.sync()
    directory.write_checkpoints(offsets)
    directory.mark_clean(ends)
    metadata_log.close()
    directory.close()


def _append_segments(log: Log, segments: int) -> None:
    batch = encode_batch([b"x" * VALUE_BYTES], timestamps_ms=now_ms())
    for number in range(segments):
        if number:
            log.local.roll(now_ms())
        for _ in range(8):
            log.appender.append_as_leader(check_batch(batch, 1 << 20), leader_epoch=0, now_ms=now_ms())
    plan = log.flusher.prepare()
    assert plan is not None
    plan.stage_side_files()
    plan.place_side_files()
    log.flusher.mark_flushed(plan)  # the whole file system is synced before anybody relies on it
    log.bounds.raise_high_watermark(log.recovery_point)


def start_and_stop(data_dir: Path, *, is_clean: bool) -> dict[str, float]:
    """Seconds until a broker process is ready, and until it has ended; and what the start took of the processor.

    The latter says more where other programs run: it is what a start takes on a machine that has nothing else to do.
    """
    broker = BrokerProcess(data_dir, max_open_files=MAX_OPEN_FILES)
    before_s = time.perf_counter()
    with broker:
        ready_s = time.perf_counter()
        cpu_s = processor_time(broker.pid).own_s
        open_descriptors = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        maps = sum(".index" in line or ".timeindex" in line for line in _lines(Path(f"/proc/{broker.pid}/maps")))
        stopping_s = time.perf_counter()
        if is_clean:
            assert broker.terminate() == 0, broker.output
        else:
            broker.kill()
        ended_s = time.perf_counter()
    return {
        "start_s": ready_s - before_s,
        "start_cpu_s": cpu_s,
        "stop_s": ended_s - stopping_s,
        "descriptors": open_descriptors,
        "index_maps": maps,
    }


def open_logs(data_dir: Path) -> dict[str, float]:
    """Seconds that opening takes within a process that runs already, and closing after it."""
    config = BrokerConfig(data_dir=str(data_dir), max_open_files=MAX_OPEN_FILES)
    before_s, before_cpu_s = time.perf_counter(), time.process_time()
    directories, metadata_log = lock_and_read(config)
    directory = directories.first
    stored = opened_logs(directories, metadata_log, config)
    opened_s, opened_cpu_s = time.perf_counter(), time.process_time()
    logs = [each.log for _, group in stored.topics for each in group.values() if each.log is not None]
    ends = {log.key: log.close() for log in logs}
    directory.write_checkpoints({log.key: log.offsets for log in logs})
    directory.mark_clean({key: end for key, end in ends.items() if end is not None})
    closed_s = time.perf_counter()
    metadata_log.close()
    directory.close()
    return {
        "start_s": opened_s - before_s,
        "start_cpu_s": opened_cpu_s - before_cpu_s,
        "stop_s": closed_s - opened_s,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def measure(rounds: int, run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The medians of the figures of so many runs."""
    runs = [run() for _ in range(rounds)]
    return {name: round(median(figures[name] for figures in runs), 3) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-start", description="Measure starts and stops on this machine.")
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--segments", type=int, default=10)
    parser.add_argument("--log-mib", type=int, default=900, help="the size of the log of the last rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build/bench-start.json"), help="where the figures go")
    arguments = parser.parse_args()
    size = Size(arguments.partitions, arguments.segments)
    console = Console()
    results = {}
    with scratch_directory() as directory:
        programs = measure_programs(directory / "programs", max(arguments.rounds, PROGRAM_ROUNDS))
        console.print(table_of_programs(programs))
        idle = idle_mib(directory / "idle")
        console.print(f"an idle broker: {idle:.1f} MiB, at most {IDLE_MIB}")
        for name, of in (("nothing", Size(0, 0)), (size.text, size)):
            data_dir = directory / str(of.partitions)
            fill(data_dir, of)
            results[f"broker, {name}"] = measure(
                arguments.rounds,
                lambda path=data_dir: start_and_stop(path, is_clean=True),  # type: ignore[misc]
            )
        results[f"logs alone, {size.text}"] = measure(arguments.rounds, lambda: open_logs(data_dir))
        start_and_stop(data_dir, is_clean=False)
        results[f"broker after kill -9, {size.text}"] = measure(
            arguments.rounds, lambda: start_and_stop(data_dir, is_clean=False)
        )
        results |= restarts(directory / "large", arguments.log_mib << 20, arguments.rounds)
    table = Table("what", "start, s", "start, CPU s", "stop, s", "descriptors", "index maps")
    for name, figures in results.items():
        cells = (
            figures.get(column, "") for column in ("start_s", "start_cpu_s", "stop_s", "descriptors", "index_maps")
        )
        table.add_row(name, *map(str, cells))
    console.print(table)
    settings = {"python": platform.python_version(), "cores": os.cpu_count(), "max_open_files": MAX_OPEN_FILES}
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(
        json.dumps({"settings": settings, "results": results, "programs_s": programs}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
