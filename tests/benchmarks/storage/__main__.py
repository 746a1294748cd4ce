"""`make bench-storage`: prints a table and writes build/bench-storage.json."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.__main__ import scratch_directory
from benchmarks.storage import compaction, logs, lookup, pressure
from benchmarks.storage.figures import Figure, print_table, write_json
from warmlog_protocol.codec.compression import Codec


@dataclass(frozen=True)
class Scale:
    """How much each run does. `--quick` is a first look."""

    rounds: int = 9
    lookups: int = 50_000
    pressure_rounds: int = 1
    pressure_lookups: int = 200
    idle_logs: int = 1000
    batches: int = 4000
    reads: int = 3000
    read_log_bytes: int = 10 * logs.GIB
    recovery_rounds: int = 3
    recovery_bytes: int = logs.GIB
    small_recovery_bytes: int = logs.GIB // 8
    compacted_records: int = 500_000

    @classmethod
    def quick(cls) -> "Scale":
        return cls(3, 10_000, 1, 50, 100, 1000, 1000, logs.GIB, 1, logs.GIB // 8, logs.GIB // 64, 100_000)


def benchmarks(scale: Scale, directory: Path) -> dict[str, Callable[[], Sequence[Figure]]]:
    """Every benchmark by its name."""
    rounds = scale.rounds
    return {
        "lookup": lambda: lookup.measure(directory, rounds, scale.lookups),
        "pressure": lambda: pressure.measure(directory, scale.pressure_rounds, scale.pressure_lookups, scale.idle_logs),
        "append": lambda: [logs.append(directory, rounds, scale.batches)],
        "read": lambda: [logs.read(directory, rounds, scale.reads, scale.read_log_bytes)],
        "recovery": lambda: [
            logs.recovery(
                directory,
                scale.recovery_rounds,
                scale.recovery_bytes,
                batch_bytes=logs.BATCH_BYTES,
                records=logs.RECORDS,
                bar="at least 1.5 GB/s",
            ),
            logs.recovery(
                directory, scale.recovery_rounds, scale.small_recovery_bytes, batch_bytes=100 + 125, records=1
            ),
        ],
        "compaction": lambda: [
            compaction.compaction(directory, scale.recovery_rounds, scale.compacted_records, codec=codec, rows=rows)
            for codec, rows in ((Codec.NONE, False), (Codec.ZSTD, False), (Codec.NONE, True))
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-storage", description="Measure the storage engine.")
    parser.add_argument("--quick", action="store_true", help="much less work: for a first look")
    parser.add_argument("--only", default="", help="only the benchmarks whose names begin with this")
    parser.add_argument("--output", type=Path, default=Path("build/bench-storage.json"), help="where the figures go")
    arguments = parser.parse_args()
    scale = Scale.quick() if arguments.quick else Scale()
    console = Console(stderr=True)
    figures: list[Figure] = []
    with scratch_directory() as directory:
        for name, measure in benchmarks(scale, directory).items():
            if name.startswith(arguments.only):
                console.print(name, style="dim")
                figures.extend(measure())
    write_json(arguments.output, figures)
    print_table(figures, Console(width=None if sys.stdout.isatty() else 200))
    console.print(f"written to {arguments.output}", style="dim")


if __name__ == "__main__":
    main()
