"""`warmlog spark-export`: copy a topic to Parquet with Spark, each record once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.terminal.exits import CommandFailed, checked
from warmlog.cli.terminal.options import chosen_broker, client_options, connection, print_result, topic_argument
from warmlog.cli.terminal.output import counted, line, note
from warmlog.cli.terminal.status import Progress
from warmlog.extras import install_hint

if TYPE_CHECKING:
    from warmlog.spark.export.export import ExportOptions


@click.command()
@topic_argument
@click.argument("path", metavar="PATH", help="Where to write the files.")
@click.option("--follow", is_flag=True, help="Continue with new records until Ctrl-C.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    metavar="SECONDS",
    help="With --follow: how long to wait before copying again.",
)
@click.option("--headers", is_flag=True, help="Copy the headers too; the same in every run.")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_committed",
    help="read_committed leaves out records of aborted transactions, and stops at the first open one; "
    "read_uncommitted copies all.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "snappy", "lz4", "zstd"]),
    default="snappy",
    help="How the files are compressed.",
)
@click.option("--task-bytes", default="256m", metavar="SIZE", help="About how much of the log a task copies, like 64m.")
@click.option(
    "--allow-data-loss",
    is_flag=True,
    help="Skip records that retention deleted before they were copied, and those lost or damaged on disk.",
)
@click.option("--master", default="local[*,4]", metavar="URL", help="Spark's master, unless spark-submit sets it.")
@client_options
def spark_export(
    topic: str,
    path: str,
    follow: bool,
    interval_s: float,
    headers: bool,
    isolation: str,
    compression: str,
    task_bytes: str,
    allow_data_loss: bool,
    master: str,
) -> None:
    """Copy a topic to Parquet files with Spark, each record once.

    \b
        PATH/date=2013-01-01/part-….parquet
                         Kafka's columns, by the day of the timestamp in UTC
        PATH/_warmlog/   what is copied; Spark ignores it when it reads PATH

    Run it again to copy newer records, or to continue after a crash; a second export to PATH at the same time
    is refused. PATH must be a directory that the driver and all executors share.

    To run it on a cluster: spark-submit …/warmlog/cli/export_job.py TOPIC PATH. Otherwise it runs on all cores of
    this machine, with four attempts for each task, as on a cluster.
    """
    directory = checked("PATH", _local_path, path)
    from warmlog.spark.export.export import ExportOptions, check_topic
    from warmlog.spark.export.manifest import Manifest
    from warmlog.spark.options.options import parse_size_bytes
    from warmlog.spark.options.read_options import PlanLimits
    from warmlog_protocol.messages import IsolationLevel
    from warmlog_transport.options import ConnectionOptions, override

    options = ExportOptions(
        bootstrap=tuple(chosen_broker().split(",")),
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
            _export(session, manifest, options, interval_s if follow else None)
        finally:
            session.stop()


def _export(session: Any, manifest: Any, options: "ExportOptions", interval_s: float | None) -> None:
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
        copied_to = {"topic": options.topic, "path": str(options.path), "files": files}
        lost = f"; {lost_offsets:,} lost offsets were skipped" if lost_offsets else ""
        said = f"{options.topic} to {options.path}: {counted(files, 'file')}, {progress.summary()}{lost}"
        print_result({**copied_to, "lost_offsets": lost_offsets, **progress.figures()}, lambda: line(said))


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
