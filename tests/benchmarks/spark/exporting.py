"""The companion job: a topic to Parquet."""

import shutil
from pathlib import Path
from typing import Any

from benchmarks.measurement import Run
from benchmarks.spark.reading import timed


def export(session: Any, bootstrap: str, topic: str, records: int, directory: Path) -> Run:
    """All of the topic, with Kafka's seven columns, to files that are on disk."""
    from warmlog.spark.export.export import ExportOptions, export_available
    from warmlog.spark.export.manifest import Manifest

    options = ExportOptions((bootstrap,), topic, directory)

    def copy() -> int:
        with Manifest(directory).locked() as manifest:
            return sum(each.records for each in export_available(session, manifest, options))

    try:
        return timed(records, copy)
    finally:
        shutil.rmtree(directory)
