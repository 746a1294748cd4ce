"""`warmlog log adopt`: take over the topics of a stopped Kafka."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.terminal.exits import CommandFailed, checked
from warmlog.cli.terminal.output import counted, line, note
from warmlog.cli.terminal.paths import DIRECTORY, FILE, NEW_DIRECTORY
from warmlog.cli.terminal.status import Status
from warmlog.cli.terminal.tables import human_size
from warmlog.extras import install_hint

if TYPE_CHECKING:
    from warmlog_broker.tools.adoption.plan import AdoptedTopic, Adoption
    from warmlog_broker.tools.adoption.topic_configs import TopicConfigs

KAFKA_POLL_S = 0.5


@click.command()
@click.argument(
    "kafka_dir",
    type=DIRECTORY,
    nargs=-1,
    required=True,
    metavar="KAFKA_DIR...",
    help="A data directory of a stopped Kafka; all of them, if it has several.",
)
@click.option(
    "--data-dir",
    type=NEW_DIRECTORY,
    required=True,
    metavar="DIR",
    help="Our data directory: a new one, or one of a stopped broker.",
)
@click.option(
    "--link",
    "is_linked",
    is_flag=True,
    help="Hard-link closed .log files, which are never written, instead of copying them.",
)
@click.option("--topic", multiple=True, metavar="TOPIC", help="Only this topic. Repeatable.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Check everything and change nothing.")
@click.option(
    "--recover",
    "must_recover",
    is_flag=True,
    help="Accept a Kafka that was not stopped cleanly: the copies are recovered.",
)
@click.option("--empty-partitions", "fills_missing", is_flag=True, help="Create missing partitions, empty.")
@click.option(
    "--topic-configs",
    type=FILE,
    metavar="FILE",
    help='Topic settings: JSON {"topic": {"name": "value"}}, or the output of Kafka\'s '
    "kafka-configs.sh --describe --entity-type topics [--all].",
)
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="Ask a running Kafka for topic settings and partition counts. If it uses KAFKA_DIR, it has to be stopped "
    "after that: the command waits.",
)
def adopt(
    kafka_dir: tuple[Path, ...],
    data_dir: Path,
    is_linked: bool,
    topic: tuple[str, ...],
    is_dry_run: bool,
    must_recover: bool,
    fills_missing: bool,
    topic_configs: Path | None,
    kafka: str | None,
) -> None:
    """Take over the topics of a stopped Kafka with their offsets, timestamps, keys, headers and transactions.

    Kafka's files are only read. Everything is checked before anything is written, and all topics appear at once.
    Without --kafka or --topic-configs retention and compaction are off until `warmlog topic alter` sets them.
    """
    from warmlog_broker.tools.adoption.adopt import adopt as run
    from warmlog_broker.tools.adoption.plan import AdoptionOptions

    for path in kafka_dir:
        if data_dir.resolve().is_relative_to(path.resolve()):
            raise click.BadParameter(
                f"{data_dir} is inside Kafka's {path}: give another directory", param_hint="--data-dir"
            )
    if kafka is not None and topic_configs is not None:
        raise click.BadParameter("give --kafka or --topic-configs, not both", param_hint="--kafka")
    topics = frozenset(topic)
    configs = _configs(kafka, topic_configs, kafka_dir, topics)
    options = AdoptionOptions(topics, is_linked, must_recover, fills_missing, configs)
    status = Status()

    def take_over() -> "Adoption":
        try:
            return run(
                kafka_dir,
                data_dir,
                options,
                now_ms=time.time_ns() // 1_000_000,
                is_dry_run=is_dry_run,
                on_checked=lambda name: status.tell(f"checked {name}"),
                on_copied=lambda name, done, total: status.tell(
                    f"copying {name}: {human_size(done)} of {human_size(total)}"
                ),
            )
        finally:
            status.clear()

    adoption = take_over() if kafka is None else _once_stopped(take_over)
    for path, reason in adoption.skipped:
        note(f"skipped {path}: {reason}")
    for name in adoption.done_before:
        note(f"topic {name} was taken over earlier")
    for adopted in adoption.topics:
        _print_topic(adopted, is_dry_run=is_dry_run)
    if adoption.topics:
        note(f"{human_size(adoption.bytes_to_copy)} {'would be copied' if is_dry_run else 'copied'}")
        _print_settings([adopted.name for adopted in adoption.topics], configs)


def _once_stopped(take_over: Callable[[], "Adoption"]) -> "Adoption":
    """Return the result of `take_over`, which is called again until no other process uses the directories."""
    from warmlog_broker.storage.directory.dir_lock import DirectoryLocked

    told = ""
    while True:
        try:
            return take_over()
        except DirectoryLocked as error:
            if str(error) != told:
                note(f"Kafka's settings are known; waiting: {error}")
            told = str(error)
            time.sleep(KAFKA_POLL_S)


def _configs(
    kafka: str | None, file: Path | None, kafka_dirs: Sequence[Path], topics: frozenset[str]
) -> "TopicConfigs":
    """Return the settings that the Kafka tells, or those in the file. Wrong ones end the command, nothing is copied."""
    from warmlog_broker.tools.adoption.topic_configs import TopicConfigs, read_topic_configs
    from warmlog_protocol.errors import InvalidConfig
    from warmlog_transport.address import parse_addresses

    if kafka is None:
        try:
            return TopicConfigs() if file is None else read_topic_configs(file)
        except InvalidConfig as error:
            raise click.BadParameter(str(error), param_hint="--topic-configs") from None
    checked("--kafka", parse_addresses, kafka)
    try:
        from warmlog_broker.tools.adoption.kafka_cluster import ask_kafka

        return ask_kafka(kafka, kafka_dirs, topics)
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error}; --kafka needs it: {install_hint('adopt')}") from None
    except InvalidConfig as error:
        raise CommandFailed(f"{error}. Give settings by --topic-configs") from None


def _print_settings(topics: list[str], configs: "TopicConfigs") -> None:
    from warmlog_broker.tools.adoption.adopt import KEEPS_EVERYTHING

    for name in topics:
        if name in configs.unknown:
            note(f"{name}: settings that warmlog does not have are left out: {', '.join(configs.unknown[name])}")
    settings = {name: {**KEEPS_EVERYTHING, **configs.known.get(name, {})} for name in topics}
    kept = [name for name in topics if settings[name].items() >= KEEPS_EVERYTHING.items()]
    if kept:
        note(f"retention (retention.ms=-1) and compaction are off until you set them: {', '.join(kept)}")
    endless = [name for name in topics if name not in kept and "retention.ms" not in configs.known[name]]
    if endless:
        note(f"nothing is deleted for its age (retention.ms=-1) until you set retention.ms: {', '.join(endless)}")
    if configs.partitions:
        if kept:
            note("Kafka has only defaults for these topics: set what each needs by `warmlog topic alter`")
        return
    if not configs.known.keys() >= set(topics):
        note(
            "Kafka stores topic settings elsewhere: give them by --kafka or --topic-configs, or later by "
            "`warmlog topic alter`"
        )
    unused = sorted(configs.known.keys() - set(topics))
    if unused:
        note(f"--topic-configs names topics that were not taken over: {', '.join(unused)}")
    note("Kafka stores partition counts elsewhere: compare them")


def _print_topic(topic: "AdoptedTopic", *, is_dry_run: bool) -> None:
    if is_dry_run:
        line(f"{topic.name}: {len(topic.sources)} of {topic.partitions} partitions can be taken over")
        return
    for log in topic.logs.values():
        linked = f", {counted(log.linked_files, 'file')} linked" if log.linked_files else ""
        line(
            f"{log.key.directory_name}: offsets {log.offsets.log_start_offset} to {log.offsets.recovery_point}, "
            f"{human_size(log.log_bytes)}{linked}"
        )
        for remark in log.remarks:
            note(f"{log.key.directory_name}: {remark}")
    for index in topic.missing:
        line(f"{topic.name}-{index}: empty")
