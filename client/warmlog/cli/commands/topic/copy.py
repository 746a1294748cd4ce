"""`warmlog topic copy`: copy the records of a topic into another one."""

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.terminal import options
from warmlog.cli.terminal.exits import CommandFailed, checked, describe
from warmlog.cli.terminal.output import counted, note
from warmlog.cli.terminal.profile import PASSWORD_FILE_KEY, login_options, profile_named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from warmlog import Batch, Consumer, Producer, TopicDescription
    from warmlog.cli.terminal.records import Damage
    from warmlog.cli.terminal.status import Progress
    from warmlog.points import Where

ROUND_BYTES = 4 * 1024 * 1024
"""How much is read before it is sent, so that small batches become large ones."""
TIMESTAMP_TYPE = "message.timestamp.type"


@click.command()
@click.argument("source", metavar="SOURCE", help="The topic to read.")
@click.argument("target", metavar="TARGET", help="The topic to write; created if missing.")
@click.option("--to-broker", metavar="HOST:PORT", help="The broker of TARGET; that of SOURCE if not given.")
@click.option(
    "--to-profile",
    metavar="NAME",
    help="The table of the client profile with the broker of TARGET, its login and TLS. The environment has no effect "
    "on these.",
)
@click.option("--to-username", metavar="NAME", help="The user to connect to the broker of TARGET as.")
@click.option("--to-password-file", metavar="FILE", help="A file with that user's password.")
@click.option("--from", "start", default="earliest", metavar="earliest|OFFSET|-N|-1h|TIME", help="Where to begin.")
@options.to_option(default="latest")
@options.compression_option
@options.client_options
def copy(
    source: str,
    target: str,
    to_broker: str | None,
    to_profile: str | None,
    to_username: str | None,
    to_password_file: str | None,
    start: str,
    end: str,
    compression: str,
) -> None:
    """Copy the committed records of SOURCE, up to its end as it is now, to TARGET.

    Keys, values, headers and timestamps stay as they are, null or empty; so does the order within a partition.
    Offsets are new. A TARGET that does not exist is created with the partitions and the own settings of SOURCE. If
    TARGET has another number of partitions, keys choose the partition. A record without a timestamp gets the time of
    the copy.

    Both brokers get the same login, unless --to-profile, --to-username or --to-password-file say that of TARGET.

    Copying twice appends twice. Damaged offsets are skipped, and what follows the first record of an open transaction
    is left out; both are reported, and the exit code is 1.
    """
    from warmlog.cli.terminal.times import parse_end, parse_start

    first = checked("--from", parse_start, start)
    last = checked("--to", partial(parse_end, start=first), end)
    broker = options.chosen_broker()
    to_settings = None if to_profile is None else profile_named(to_profile)
    target_broker = to_broker or (to_settings and to_settings.broker) or broker
    options.check_broker(target_broker)
    login = options.connection()
    given = dict(login if to_settings is None else to_settings.connection)
    if to_username is not None:
        given = {name: value for name, value in given.items() if name not in ("password", PASSWORD_FILE_KEY)}
        given["username"] = to_username
    if to_password_file is not None:
        given[PASSWORD_FILE_KEY] = to_password_file
    to_login = login_options(given)

    from warmlog.cli.commands.topic.waiting import CommittedWatch
    from warmlog.cli.terminal.records import Damage, sending
    from warmlog.cli.terminal.status import Progress

    progress, damage = Progress(shows_status=sys.stderr.isatty()), Damage()

    async def run() -> tuple[bool, bool]:
        from warmlog import Consumer, Producer

        read, written, is_new = await _prepare(broker, login, source, target_broker, to_login, target)
        keeps_partitions = len(read.partitions) == len(written.partitions)
        if not keeps_partitions:
            note(f"{target} has {counted(len(written.partitions), 'partition')}: keys choose the partition")
        if written.configs[TIMESTAMP_TYPE].value == "LogAppendTime":
            note(f"{target} has {TIMESTAMP_TYPE}=LogAppendTime: timestamps are those of the copy")
        async with Consumer(broker, topics=[source], start=last, **login) as uncommitted:
            logs = await uncommitted.available()
            ends = {each: min(uncommitted.position(*each), log.stop) for each, log in logs.items()}
        consuming = Consumer(broker, topics=[source], start=first, isolation="read_committed", **login)
        unstarted = Producer(target_broker, compression=compression, **to_login)
        async with CommittedWatch(broker, login) as watch, sending(unstarted) as producer:
            options.show_warnings()
            async with consuming as consumer:
                watch.follow(consumer)
                logs = await consumer.available()
                committed = {each: min(end, logs[each].stop) for each, end in ends.items()}
                await _copy(consumer, committed, producer, target, keeps_partitions, progress, damage)
                is_held_back = committed != ends and await watch.end(consumer)
                if not is_held_back:  # what followed a transaction that was open as the copy began, and has ended
                    await _copy(consumer, ends, producer, target, keeps_partitions, progress, damage)
                return is_new, is_held_back

    try:
        is_new, is_held_back = options.run_client(run, is_bulk=True)
    except Exception as error:
        progress.clear()
        before = f"; {progress.counted_records()} copied before that" if progress.records else ""
        raise CommandFailed(f"{describe(error)}{before}") from error
    progress.clear()
    said = f"{progress.summary()} from {source} to {target}{', a new topic' if is_new else ''}"
    document = {"source": source, "target": target, "is_created": is_new, **progress.figures()}
    options.print_result(document, lambda: note(said))
    damage.check(source)
    if is_held_back:
        raise CommandFailed(f"{source} was not copied to its end: copy it when these transactions have ended")


async def _prepare(
    broker: str, login: dict[str, Any], source: str, target_broker: str, to_login: dict[str, Any], target: str
) -> "tuple[TopicDescription, TopicDescription, bool]":
    """Return both topics, and whether the target was created now."""
    from warmlog import Admin
    from warmlog.errors import UnknownTopicOrPartition

    async with Admin(broker, **login) as admin:
        read = await admin.describe_topic(source)
    async with Admin(target_broker, **to_login) as admin:
        is_new = False
        try:
            written = await admin.describe_topic(target)
        except UnknownTopicOrPartition:
            own = {name: config.value for name, config in read.configs.items() if not config.is_default}
            await admin.create_topic(target, partitions=len(read.partitions), configs=own)
            written, is_new = await admin.describe_topic(target), True
    if written.topic_id == read.topic_id:
        raise CommandFailed(f"{source} cannot be copied into itself: name another TARGET")
    return read, written, is_new


async def _copy(
    consumer: "Consumer",
    until: "Where",
    producer: "Producer",
    target: str,
    keeps_partitions: bool,
    progress: "Progress",
    damage: "Damage",
) -> None:
    """Send what one round has read while the next round is read. A partition has one `send_many` in flight."""
    import asyncio

    from warmlog.cli.terminal.records import Parcel, send_parcels

    sending: asyncio.Task[None] | None = None
    async for round_, size_bytes in _rounds(consumer.batches(until=until), damage):
        now_ms = time.time_ns() // 1_000_000
        parcels = [Parcel.of(own, place if keeps_partitions else None, now_ms) for place, own in round_.items()]
        if sending is not None:
            await sending
        sending = asyncio.create_task(send_parcels(producer, target, parcels, size_bytes, progress))
    if sending is not None:
        await sending


async def _rounds(
    batches: "AsyncIterator[Batch]", damage: "Damage"
) -> "AsyncIterator[tuple[dict[int, list[Batch]], int]]":
    """Yield the batches of each partition, decoded, until they have ROUND_BYTES; and their bytes."""
    batch: Batch | None
    is_at_end = False
    while not is_at_end:
        found: dict[int, list[Batch]] = {}
        size_bytes = 0
        while size_bytes < ROUND_BYTES and not is_at_end:
            with damage.skipped():
                batch = await anext(batches, None)
                is_at_end = batch is None
                if batch:
                    if batch.has_headers:
                        _ = batch.headers  # decoded here, where damage is skipped
                    size_bytes += sum(map(len, filter(None, batch.values))) + sum(map(len, filter(None, batch.keys)))
                    found.setdefault(batch.partition, []).append(batch)
        if found:
            yield found, size_bytes
