"""`make bench-storage`: prints a table and writes build/bench-storage.json."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.measurement import scratch_directory
from benchmarks.storage.figures import Figure, print_table
from benchmarks.turns import add_options, serve, write_json

GIB = 1024**3


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
    read_log_bytes: int = 10 * GIB
    recovery_rounds: int = 3
    recovery_bytes: int = GIB
    small_recovery_bytes: int = GIB // 8
    compacted_records: int = 500_000

    @classmethod
    def quick(cls) -> "Scale":
        return cls(3, 10_000, 1, 50, 100, 1000, 1000, GIB, 1, GIB // 8, GIB // 64, 100_000)


def benchmarks(scale: Scale, directory: Path) -> dict[str, Callable[[], Sequence[Figure]]]:
    """Every benchmark by its name. What it measures is imported with it: another build may lack that."""
    rounds = scale.rounds

    def look_up() -> Sequence[Figure]:
        from benchmarks.storage import lookup

        return lookup.measure(directory, rounds, scale.lookups)

    def press() -> Sequence[Figure]:
        from benchmarks.storage import pressure

        return pressure.measure(directory, scale.pressure_rounds, scale.pressure_lookups, scale.idle_logs)

    def append() -> Sequence[Figure]:
        from benchmarks.storage import logs

        return [logs.append(directory, rounds, scale.batches)]

    def read() -> Sequence[Figure]:
        from benchmarks.storage import logs

        return [logs.read(directory, rounds, scale.reads, scale.read_log_bytes)]

    def recover() -> Sequence[Figure]:
        from benchmarks.storage import logs

        large, small, rounds = scale.recovery_bytes, scale.small_recovery_bytes, scale.recovery_rounds
        bar = "at least 1.5 GB/s"
        return [
            logs.recovery(directory, rounds, large, batch_bytes=logs.BATCH_BYTES, records=logs.RECORDS, bar=bar),
            logs.recovery(directory, rounds, small, batch_bytes=100 + 125, records=1),
        ]

    def compact() -> Sequence[Figure]:
        from benchmarks.storage import compaction

        return compaction.measure(directory, scale.recovery_rounds, scale.compacted_records)

    def convert() -> Sequence[Figure]:
        from benchmarks.storage import rows as rows_and_columns

        return rows_and_columns.measure(rounds)

    return {
        "lookup": look_up,
        "pressure": press,
        "append": append,
        "read": read,
        "recovery": recover,
        "compaction": compact,
        "rows": convert,
    }


def _rows(measure: Callable[[], Sequence[Figure]]) -> list[dict[str, object]]:
    return [each.to_json() for each in measure()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-storage", description="Measure the storage engine.")
    parser.add_argument("--quick", action="store_true", help="much less work: for a first look")
    add_options(parser, Path("build/bench-storage.json"))
    arguments = parser.parse_args()
    scale = Scale.quick() if arguments.quick else Scale()
    console = Console(stderr=True)
    figures: list[Figure] = []
    wanted = arguments.only.split(",")
    with scratch_directory() as directory:
        chosen = {
            name: measure
            for name, measure in benchmarks(scale, directory).items()
            if any(part in name for part in wanted)
        }
        if arguments.turns:
            serve({name: partial(_rows, measure) for name, measure in chosen.items()}, {})
            return
        for name, measure in chosen.items():
            console.print(name, style="dim")
            figures.extend(measure())
    write_json(arguments.output, [each.to_json() for each in figures])
    print_table(figures, Console(width=None if sys.stdout.isatty() else 200))
    console.print(f"written to {arguments.output}", style="dim")


if __name__ == "__main__":
    main()
