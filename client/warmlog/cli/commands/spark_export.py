"""`warmlog spark-export`: copy a topic to Parquet with Spark, each record once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Topic, connection
from warmlog.cli.terminal.output import counted, json_line, line, note
from warmlog.cli.terminal.status import Progress
from warmlog.extras import install_hint

if TYPE_CHECKING:
    from warmlog.spark.export.export import ExportOptions

HELP = """Copy a topic to Parquet files with Spark, each record once.

    PATH/date=2013-01-01/part-….parquet
                     Kafka's columns, by the day of the timestamp in UTC
    PATH/_warmlog/   what is copied; Spark ignores it when it reads PATH

Run it again to copy newer records, or to continue after a crash; a second export to PATH at the same time
is refused. PATH must be a directory that the driver and all executors share.

To run it on a cluster: spark-submit …/warmlog/cli/export_job.py TOPIC PATH. Otherwise it runs on all cores of
this machine, with four attempts for each task, as on a cluster."""


@ends_cleanly
def spark_export(
    topic: Topic,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Where to write the files.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new records until Ctrl-C.")] = False,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval", min=0.1, metavar="SECONDS", help="With --follow: how long to wait before copying again."
        ),
    ] = 10.0,
    headers: Annotated[bool, typer.Option("--headers", help="Copy the headers too; the same in every run.")] = False,
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed"],
        typer.Option(
            help="read_committed leaves out records of aborted transactions, and stops at the first open one; "
            "read_uncommitted copies all."
        ),
    ] = "read_committed",
    compression: Annotated[
        Literal["none", "snappy", "lz4", "zstd"], typer.Option(help="How the files are compressed.")
    ] = "snappy",
    task_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="About how much of the log a task copies, like 64m.")
    ] = "256m",
    allow_data_loss: Annotated[
        bool,
        typer.Option(
            "--allow-data-loss",
            help="Skip records that retention deleted before they were copied, and those lost or damaged on disk.",
        ),
    ] = False,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's master, unless spark-submit sets it.")
    ] = "local[*,4]",
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    directory = checked("PATH", _local_path, path)
    from warmlog.spark.export.export import ExportOptions, check_topic
    from warmlog.spark.export.manifest import Manifest
    from warmlog.spark.options.options import parse_size_bytes
    from warmlog.spark.options.read_options import PlanLimits
    from warmlog_protocol.messages import IsolationLevel
    from warmlog_transport.options import ConnectionOptions, override

    options = ExportOptions(
        bootstrap=tuple(broker.split(",")),
        topic=topic,
        path=directory,
        has_headers=headers,
        compression=compression,
        fails_on_data_loss=not allow_data_loss,
        isolation=IsolationLevel[isolation.upper()],
        limits=PlanLimits(max_bytes=checked("--task-bytes", parse_size_bytes, task_bytes)),
        connection=override(ExportOptions.connection, connection(), ConnectionOptions),
    )
    check_topic(options)
    with Manifest(directory).locked() as manifest:
        session = _session(master)
        try:
            _export(session, manifest, options, interval_s if follow else None, as_json=as_json)
        finally:
            session.stop()


def _export(session: Any, manifest: Any, options: "ExportOptions", interval_s: float | None, *, as_json: bool) -> None:
    """Copy once, or without end; the summary comes at the end, also after Ctrl-C."""
    import sys

    from warmlog.spark.export.export import export_available, export_following

    if interval_s is None:
        rounds = export_available(session, manifest, options)
    else:
        rounds = export_following(session, manifest, options, interval_s)
    progress = Progress(shows_status=sys.stderr.isatty())
    files = lost_offsets = 0
    try:
        for copied in rounds:
            progress.add(copied.records, copied.size_bytes)
            files += copied.files
            lost_offsets += copied.lost_offsets
    finally:
        progress.clear()
        if as_json:
            copied_to = {"topic": options.topic, "path": str(options.path), "files": files}
            json_line({**copied_to, "lost_offsets": lost_offsets, **progress.figures()})
        else:
            lost = f"; {lost_offsets:,} lost offsets were skipped" if lost_offsets else ""
            line(f"{options.topic} to {options.path}: {counted(files, 'file')}, {progress.summary()}{lost}")


def _local_path(text: str) -> Path:
    """Return the directory of a path or a file: URL; ValueError for other URLs."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        raise ValueError(f"{text} is on {scheme}: give a directory, such as one on a shared mount")
    return Path(rest if separator else text.removeprefix("file:")).absolute()


def _session(master: str) -> Any:
    """Return the session of spark-submit, or a new one on `master`."""
    import os
    import sys

    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:  # pragma: no cover - the test environment has Spark
        raise CommandFailed(f"{error}; install Spark: {install_hint('spark')}") from None

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("warmlog spark-export").config("spark.ui.showConsoleProgress", "false")
    if not SparkConf().contains("spark.master"):
        note(f"starting Spark on {master}")
        builder = builder.master(master).config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
