"""The whole life of a broker process: from a configuration to an exit code."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvloop

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.loader import StartRefused
from warmlog_broker.runtime.malloc import keep_to_one_arena
from warmlog_broker.runtime.systemd import ServiceManager
from warmlog_broker.runtime.threads import CannotStartThreads
from warmlog_broker.runtime.version import broker_version
from warmlog_broker.server.broker import Broker
from warmlog_broker.server.crash_count import CrashLoop
from warmlog_broker.server.listening import CannotListen
from warmlog_broker.server.log_lines import log_to_stderr, take_levels
from warmlog_broker.storage.directory.properties import DataDirectoryError
from warmlog_protocol.durability import Durability
from warmlog_protocol.errors import InvalidConfig, StorageError

EXIT_STOPPED = 0
EXIT_FAILED = 1
SHOWN_IN_FIRST_LINE = frozenset({"data.dir", "data.dirs", "listen", "listeners"})
"""Settings that the first line shows."""
REFUSALS = (DataDirectoryError, StorageError, CannotListen, CannotStartThreads, CrashLoop, InvalidConfig, StartRefused)
"""Errors that an operator understands without a traceback."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


def serve(config: BrokerConfig) -> int:
    """Run a broker until SIGTERM or SIGINT; return the exit code of the process: 0 after a clean stop, otherwise 1.

    Logs to stderr, unless logging is configured already: then `log.format` and `log.level` mean nothing. An error that
    prevents the start is one line of the log.
    """
    on_settings = None
    if not logging.getLogger().hasHandlers():
        log_to_stderr(config)
        on_settings = take_levels
    keep_to_one_arena()
    # Until it serves, a signal ends the process at once: an interrupted start is as safe as a crash.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return EXIT_STOPPED if runner.run(_run(config, on_settings)) else EXIT_FAILED
    except REFUSALS as error:
        _log.critical("warmlog: %s", error)
        return EXIT_FAILED
    except Exception:
        _log.critical("warmlog: the broker has ended: a bug", exc_info=True)
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGINT, before)


async def _run(config: BrokerConfig, on_settings: Callable[[BrokerConfig], None] | None) -> bool:
    """Serve until told to stop; return whether the stop was clean."""
    loop = asyncio.get_running_loop()
    broker = Broker(config, ServiceManager(), on_settings=on_settings)
    told_to_stop = asyncio.Event()
    if not sys.stderr.isatty():  # at a terminal SIGHUP says that it was closed
        loop.add_signal_handler(signal.SIGHUP, broker.listening.reload_certificate)
    await broker.start(while_loading=_ended_by_signals(loop, broker.end_start, then=told_to_stop.set))
    # Thousands of partitions are a million long-lived objects, and each collection would spend 0.1 s on them.
    gc.collect()
    gc.freeze()
    gc.enable()  # who starts a broker as a program may have disabled it, as imports and logs are not garbage
    log_start(broker)
    broker.tell_ready()
    failing = asyncio.ensure_future(broker.wait_for_failure())
    stopping = asyncio.ensure_future(told_to_stop.wait())
    await asyncio.wait([failing, stopping], return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        _log.critical("warmlog: every data directory has failed, stopping")
    for task in (failing, stopping):
        task.cancel()
    for number in STOP_SIGNALS:
        # A second signal ends the process at once.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    _log.info("warmlog: stopping")
    with _ended_after(broker.stop_limit_s):
        is_clean = await broker.stop()
    _log.info("warmlog: stopped" if is_clean else "warmlog: stopped, but not cleanly: the next start checks the logs")
    return is_clean


@contextmanager
def _ended_after(limit_s: float) -> Iterator[None]:
    """End the process if the body takes longer: a thread that waits for a disk cannot be interrupted."""

    def end() -> None:
        _log.critical(
            "warmlog: a disk has not responded, and the stop has taken %g s: exiting without it; the next start checks "
            "the logs",
            limit_s,
        )
        os._exit(EXIT_FAILED)

    watch = threading.Timer(limit_s, end)
    watch.daemon = True
    with suppress(RuntimeError):  # out of threads: a stop without a limit is better than none
        watch.start()
    try:
        yield
    finally:
        watch.cancel()


@contextmanager
def _ended_by_signals(
    loop: asyncio.AbstractEventLoop, before_end: Callable[[], None], *, then: Callable[[], None]
) -> Iterator[None]:
    """Have a stop signal call `before_end` and end the process; a second signal does not wait for `before_end`.

    After the body such a signal calls `then`, without a moment between in which it would end the process.
    """

    def end(number: int) -> None:
        default_handling()
        _log.info("warmlog: told to stop while starting: the next start does what is left")
        before_end()
        os.kill(os.getpid(), number)

    def default_handling() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, then)


def log_start(broker: Broker) -> None:
    """Log what an operator changed, and one line about the broker, which is ready."""
    config = broker.config
    if config.ignored_variables:
        _log.warning(
            "warmlog: these environment variables are not settings and were ignored: %s",
            ", ".join(config.ignored_variables),
        )
    if config.retired:
        _log.warning(
            "warmlog: these settings have no effect any more, and will be refused by version 0.3: %s",
            ", ".join(config.retired),
        )
    if any(each.authenticates for each in config.all_listeners) and not broker.services.users.listed():
        _log.warning(
            "warmlog: there are no users, so no client can log in to a listener that asks for a password: "
            "`warmlog user add NAME` with the broker's --data-dir adds one while it is stopped"
        )
    changed = [f"{name}={text}" for name, text in config.changed_settings().items() if name not in SHOWN_IN_FIRST_LINE]
    if changed:
        _log.info("warmlog: settings that differ from their defaults: %s", ", ".join(changed))
    topics, partitions = len(list(broker.topics)), broker.topics.partition_count
    about = (
        f"version {broker_version()}, data in {', '.join(map(str, config.data_paths))}, "
        f"{topics} topic{'' if topics == 1 else 's'}, {partitions} partition{'' if partitions == 1 else 's'}, "
        f"durability: {Durability.of(config.topic_defaults.to_settings())}"
        f"{broker.admin_address and f', metrics at http://{broker.admin_address}/metrics'}"
    )
    _log.info("warmlog: ready, listening on %s (%s)", broker.listening, about)
