"""The broker as a whole: started, serving, stopped.

A stop takes these steps: accept no further connections or requests; let requests in flight finish, for
shutdown.drain.ms at most, then close their connections; flush everything; close the logs and write checkpoints and, for
every log that was closed without an error, a marker that lets the next start skip its check.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.listeners import Listener, Wire, format_address, parse_address
from warmlog_broker.data_dirs.directory_set import DirectorySet, lock_and_read, refuse_if_locked
from warmlog_broker.data_dirs.loader import LoadingProgress, LogOpener, StartGivenUp, Stored, load_partitions
from warmlog_broker.handlers import bind_endpoints
from warmlog_broker.handlers.context import Services
from warmlog_broker.metadata.store import ClusterStore, LoneClusterStore, NodeStore
from warmlog_broker.network.codec import ProtocolCodec, WarmlogCodec
from warmlog_broker.network.connections import Connections
from warmlog_broker.network.memory_pool import MemoryPool, ResponseMemory
from warmlog_broker.network.session import Outbox, Session, SessionContext
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.file_limit import RESERVED, raise_file_limit, share_files
from warmlog_broker.runtime.malloc import MemoryReturn, trim
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.systemd import READY, STOPPING, ServiceManager, extend_timeout, status
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.threads import ThreadPools
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_broker.security.authentication import Authentication, AuthenticationRules
from warmlog_broker.server.crash_count import CrashCount
from warmlog_broker.server.engine import Engine, Runtime
from warmlog_broker.server.listening import BoundListener, CannotListen, Listening, bind_all
from warmlog_broker.storage.directory.dir_lock import DirectoryLocked
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.topics.broker_changes import in_force
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import WarmlogError
from warmlog_protocol.messages import APIS
from warmlog_protocol.sasl.credential import PLAIN

if TYPE_CHECKING:
    from warmlog_broker.cluster.member import Member
    from warmlog_broker.server.admin_port import AdminPort

TICK_S = 0.2
CLOSE_TIMEOUT_S = 5.0
TASKS_TIMEOUT_S = 5.0
EXTENSION_INTERVAL_S = 10.0
"""A third of the time that `extend_timeout` requests."""

_log = logging.getLogger(__name__)


class Stage(Enum):
    """The state of a broker, and what `stop` does in it. Only a new broker can be started."""

    NEW = "ends the threads that wait for the start"
    STARTING = "aborts the start before it opens the next partition; after the last one, waits and then stops in order"
    SERVING = "stops in order"
    STOPPED = "returns the result of the first call once that is done; after a failed start, nothing is left to do"


class Broker:
    """One broker in the running event loop. Use `start_broker`."""

    def __init__(
        self,
        config: BrokerConfig,
        service_manager: ServiceManager,
        *,
        on_settings: Callable[[BrokerConfig], None] | None = None,
    ) -> None:
        """`on_settings` is called with the settings in force before any log is opened, and after each change."""
        self.config = config
        self._on_settings = on_settings
        self._service_manager = service_manager
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPools.start(config)
        self._held = ExitStack()
        """Releases all resources; some may have been released before."""
        self._held.callback(self._threads.shut_down)
        self._outbox = Outbox()
        self._tasks = Tasks()
        self._timers = TimerWheel(TICK_S)
        self._memory = MemoryPool(config.queued_max_request_bytes, config.socket_request_max_bytes)
        self._response_memory = ResponseMemory(config.queued_max_response_bytes)
        self._lines = RepeatedLines(_log)
        self.listening = Listening(config, threads=self._threads.disk, tasks=self._tasks, lines=self._lines)
        self._counters = Counters()
        self._admin: AdminPort | None = None
        self._memory_return = MemoryReturn()
        self._connections = Connections(config.max_connections, config.max_connections_per_ip)
        self._ticking: asyncio.Task[None] | None = None
        self._stage = Stage.NEW
        self._start_is_over = asyncio.Event()
        self._start_is_given_up = threading.Event()
        self._stopping: asyncio.Task[bool] | None = None
        self._crashes = CrashCount(config)
        self._member: Member | None = None
        self._engine: Engine
        self._started: BrokerConfig
        self.topics: Topics
        self.services: Services

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT of the first listener."""
        return next(iter(self.listening.addresses.values()))

    @property
    def port(self) -> int:
        """The port of the first listener; 0 before it accepts connections."""
        return int(self.address.rpartition(":")[2]) if self.listening.addresses else 0

    async def start(self, *, while_loading: AbstractContextManager[object] | None = None) -> None:
        """Start, and return when connections are accepted. Raises CannotListen, DataDirectoryError, StorageError,
        CannotStartThreads, CrashLoop, or StartGivenUp after a `stop`; after any error everything is released.

        `while_loading` is entered before this start is recorded, and left when all partitions are opened and checked,
        which may take minutes. Raises RuntimeError if it was called before.
        """
        if self._stage is not Stage.NEW:
            raise RuntimeError("a broker can be started only once: create another one to start again")
        self._stage = Stage.STARTING
        try:
            await self._start(while_loading or nullcontext())
            self._stage = Stage.SERVING
        except BaseException:
            self._stage = Stage.STOPPED
            raise
        finally:
            self._start_is_over.set()

    async def _start(self, while_loading: AbstractContextManager[object]) -> None:
        with self._held.pop_all() as undo:
            await self.listening.load_certificate()
            self._share_files()
            bound = self._bind()
            for each in bound:
                undo.callback(each.close)
            await self._open_admin_port(undo)
            locked, metadata_log = lock_and_read(self.config)
            undo.callback(locked.close)
            undo.callback(metadata_log.close)
            undo.callback(self._threads.shut_down)  # before the locks are released: no thread writes without them
            undo.push(self._record_failed_start)
            self._started = self.config
            own = metadata_log.state.broker_settings
            self.config = in_force(self._started, own, {})
            self._take_settings()
            with while_loading:
                self._crashes.begin()
                open_files = OpenFiles(self.config.max_open_files)
                undo.callback(open_files.close_all)
                progress = LoadingProgress(self._report_progress)
                opener = LogOpener(
                    open_files,
                    max_producers=self.config.max_producer_ids_per_partition,
                    is_given_up=self._start_is_given_up.is_set,
                    after_bytes=progress.add_checked,
                )
                node = NodeStore(metadata_log, self._threads.disk)
                cluster = await self._join_cluster(node, locked, bound, undo) or LoneClusterStore(node)
                loading = load_partitions(locked, node, cluster, opener, self.config, progress, self._threads.disk)
                stored = await self._extending_timeout(self._loop.create_task(loading, name="load"))
                if self._member is not None:
                    await self._member.enter(stored)
            runtime = Runtime(
                loop=self._loop,
                config=self.config,
                started=self._started,
                threads=self._threads,
                timers=self._timers,
                lines=self._lines,
                counters=self._counters,
                memory=self._memory,
                response_memory=self._response_memory,
                connections=self._connections,
            )
            self._engine = Engine(runtime, stored, opener, undo, self._member)
            self.topics, self.services = self._engine.topics, self._engine.services
            self.services.users.on_deleted.append(self._connections.dismiss)
            if self.services.authorizer.is_on:
                # Rights are checked when a fetch comes: its client has to send it again.
                self.services.authorizer.on_changed.append(self.services.delayed_fetches.end_all)
            self.services.broker_changes.on_altered.append(self._take_settings)
            if self._member is not None:
                changes = self.services.topic_changes, self.services.broker_changes
                self._member.begin(self.topics, *changes, self._access_changed)
            undo.callback(self._stop_listening)
            await self._listen(bound)
            self._engine.add_log_duties(undo)
            self._publish_metrics()
            self._held = undo.pop_all()
        self._crashes.served()
        self._engine.moves.resume(stored.futures)
        self._engine.housekeeping.start()
        self._engine.log_cleaner.start()
        self._engine.log_check.start()
        self._ticking = self._loop.create_task(self._tick(), name="tick")

    async def stop(self) -> bool:
        """Stop in order, as described above; return whether all logs were closed without an error.

        May be called at any stage (`Stage`), and again. Cancelling the call does not cancel the stop.
        """
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(), name="stop")
        return await asyncio.shield(self._stopping)

    async def _stop(self) -> bool:
        if self._stage is Stage.STARTING:
            self._start_is_given_up.set()
            await self._start_is_over.wait()
        is_serving = self._stage is Stage.SERVING
        self._stage = Stage.STOPPED
        with self._held:
            return not is_serving or await self._stop_in_order()

    async def _stop_in_order(self) -> bool:
        if self._admin is not None:
            self._admin.is_stopping = True
        self._service_manager.tell(STOPPING, status("finishing requests"), extend_timeout(int(self.stop_limit_s * 1e6)))
        if self._member is not None:
            await self._member.replicating.hand_over()
        self.listening.close()
        self.services.delayed_fetches.finish_all()
        self.services.coordinators.expire_waits()
        for session in self._connections:
            session.stop()
        flushing = self._loop.create_task(self._engine.directories.flush_all())
        await self._connections.wait_until_gone(self.config.shutdown_drain_ms / 1000)
        self._stop_listening()
        await self._connections.wait_until_gone(CLOSE_TIMEOUT_S)
        await flushing
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait([self._ticking])
        self._lines.finish(self._loop.time())
        await self.services.coordinators.stop()
        await self._tasks.finish(TASKS_TIMEOUT_S)
        await self._engine.log_check.stop()
        await self._engine.log_cleaner.stop()
        await self._engine.moves.stop()
        await self._engine.housekeeping.stop()
        if self._member is not None:
            await self._member.replicating.end()
        self._service_manager.tell(status("flushing"))
        await self._engine.directories.flush_all()
        is_clean = await self._engine.close_logs()
        if self._member is not None:
            await self._member.leave()
        self._engine.directories.close()
        return is_clean

    async def abort(self) -> None:
        """End a serving broker as a crash does: send no response, flush nothing, and leave the check to the next start.

        Unlike after a crash, all resources are released.
        """
        self._stage = Stage.STOPPED
        self._stop_listening()
        with self._held:
            await self._connections.wait_until_gone(CLOSE_TIMEOUT_S)

    @property
    def admin_address(self) -> str:
        """The HOST:PORT of the admin port; empty if there is none."""
        if self._admin is None:
            return ""
        return format_address(parse_address(self.config.admin_listen)[0], self._admin.port)

    @property
    def stop_limit_s(self) -> float:
        """How long `stop` may take. A longer one hangs on a disk, and does not end by itself."""
        waiting_s = (self.config.shutdown_drain_ms + self.config.shutdown_disk_ms) / 1000
        return waiting_s + CLOSE_TIMEOUT_S + TASKS_TIMEOUT_S

    def end_start(self) -> None:
        """Record that the process is told to exit in the middle of `start`: that is not a crash."""
        self._crashes.begun_in_vain()

    def _record_failed_start(self, kind: type[BaseException] | None, *_: object) -> None:
        """A start that ends with a WarmlogError, or is interrupted, is not a crash; any other error is one."""
        is_crash = kind is not None and issubclass(kind, Exception) and not issubclass(kind, WarmlogError)
        if self._stage is Stage.STARTING and not is_crash:
            self._crashes.begun_in_vain()

    async def wait_for_failure(self) -> None:
        """Return when every data directory has failed."""
        await self._engine.directories.all_have_failed.wait()

    def tell_ready(self) -> None:
        """Tell the service manager that the broker serves."""
        self._service_manager.tell(READY, status(f"listening on {self.listening}"))

    def _share_files(self) -> None:
        """Limit connections and open files to the descriptors that this process may have."""
        handshakes = self.listening.most_handshakes
        wanted = self.config.max_connections + self.config.max_open_files + RESERVED + handshakes
        shares = share_files(
            raise_file_limit(wanted) - handshakes,
            connections=self.config.max_connections,
            open_files=self.config.max_open_files,
        )
        self.config = replace(self.config, max_connections=shares.connections, max_open_files=shares.open_files)
        self._connections.limit = shares.connections

    def _take_settings(self) -> None:
        """Use settings as they are now, which may have been altered."""
        self._connections.limit_per_address = self.config.max_connections_per_ip
        if self._on_settings is not None:
            self._on_settings(self.config)

    def _bind(self) -> list[BoundListener]:
        """If both the port and the data directory are in use, report the directory, which is more specific."""
        try:
            return bind_all(self.config.all_listeners)
        except CannotListen:
            try:
                refuse_if_locked(self.config.data_paths)
            except DirectoryLocked as error:
                raise error from None
            raise

    async def _open_admin_port(self, undo: ExitStack) -> None:
        """Serve metrics and health from now on, also during the start, if `admin.listen` is set."""
        if not self.config.admin_listen:
            return
        from warmlog_broker.server.admin_port import AdminPort

        self._admin = AdminPort(parse_address(self.config.admin_listen))
        undo.callback(self._admin.server.close)
        await self._admin.server.start()

    def _access_changed(self) -> None:
        """Use users, rules and quotas that another broker has changed."""
        self.services.users.dismiss_deleted()
        self.services.authorizer.rules_changed()
        self.services.quotas.quotas_changed()

    def _publish_metrics(self) -> None:
        if self._admin is None:
            return
        from warmlog_broker.metrics.families import BrokerMetrics

        metrics = BrokerMetrics(
            self.services,
            certificate_expiry=self.listening.certificate_expiry,
            request_memory=self._memory,
            housekeeping=self._engine.housekeeping,
            log_cleaner=self._engine.log_cleaner,
            log_check=self._engine.log_check,
            cluster=None if self._member is None else self._member.replicating.figures,
        )
        self._admin.serve(self.services, metrics)

    async def _join_cluster(
        self, node: NodeStore, directories: DirectorySet, bound: list[BoundListener], undo: ExitStack
    ) -> ClusterStore | None:
        """Read the cluster of this broker from etcd; return its store, or None if the broker is alone."""
        if not self.config.cluster_etcd:
            return None
        from warmlog_broker.cluster.member import Member

        ports = {each.listener.name: parse_address(each.address)[1] for each in bound}
        self._member = Member(self.config, node, directories, ports)
        undo.callback(self._member.abandon)
        await self._member.read(self._threads.disk, self._start_is_given_up.is_set)
        if of_all := self._member.store.state.settings_of_all:
            self.config.take(in_force(self._started, node.state.broker_settings, of_all))
            self._take_settings()
        return self._member.store

    async def _listen(self, bound: list[BoundListener]) -> None:
        endpoints = bind_endpoints(self.services)
        if self.services.authorizer.is_on:
            from warmlog_broker.gate.gate import guarded

            endpoints = guarded(self.services, endpoints)
        by_key = {key: endpoints[api.request] for key, api in APIS.items()}
        codecs: dict[Wire, Callable[[], ProtocolCodec]] = {Wire.WARMLOG: partial(WarmlogCodec, self.config, by_key)}
        if any(each.listener.wire is Wire.KAFKA for each in bound):
            from warmlog_broker.kafka.codec import KafkaCodec
            from warmlog_broker.kafka.translators import bind_translators

            codecs[Wire.KAFKA] = partial(KafkaCodec, self.config, bind_translators(self.services, endpoints))
        of_kafka = ", ".join(each.address for each in bound if each.listener.wire is Wire.KAFKA)
        contexts = {
            each.listener: SessionContext(
                config=self.config,
                listener=each.listener,
                connections=self._connections,
                memory=self._memory,
                response_memory=self._response_memory,
                lines=self._lines,
                outbox=self._outbox,
                tasks=self._tasks,
                timers=self._timers,
                counters=self._counters,
                quotas=self.services.quotas,
                make_authentication=self._authentication_of(each.listener),
                make_codec=codecs[each.listener.wire],
                cold_readers=self._threads.cold_readers,
                kafka_addresses=of_kafka,
            )
            for each in bound
        }
        await self.listening.accept(bound, lambda listener: Session(contexts[listener]))

    def _authentication_of(self, listener: Listener) -> Callable[[], Authentication | None]:
        if not listener.authenticates:
            return lambda: None
        offered = self.config.offered_mechanisms
        mechanisms = tuple(each for each in offered if each != PLAIN or listener.may_offer_plain)
        rules = AuthenticationRules(mechanisms, self.config.sasl_session_lifetime_ms)
        return lambda: Authentication(self.services.users, rules, self._loop.time)

    def _stop_listening(self) -> None:
        """Close the listeners and all connections."""
        self.listening.close()
        for session in self._connections:
            session.close("the broker stops")

    async def _tick(self) -> None:
        """Run the timers, and keep the service manager's watchdog alive."""
        while True:
            due_s = self._loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            now_s = self._loop.time()
            self._counters.loop_delay_seconds.observe(max(0.0, now_s - due_s))
            self._timers.advance(now_s)
            self._lines.tick(now_s)
            if self._memory_return.is_due(self._connections.gone_count, now_s):
                trim()
            self._service_manager.keep_alive(now_s)

    async def _extending_timeout(self, loading: "asyncio.Future[Stored]") -> Stored:
        """Wait for `loading` while asking the service manager for more time: one partition may take long.

        Raises StartGivenUp after a stop. When cancelled, it aborts the start and waits until no thread opens logs.
        """
        cancelled: asyncio.CancelledError | None = None
        while not loading.done():
            try:
                done, _ = await asyncio.wait([loading], timeout=EXTENSION_INTERVAL_S)
            except asyncio.CancelledError as error:
                self._start_is_given_up.set()
                cancelled = error
            else:
                if not done:
                    self._service_manager.tell(extend_timeout())
        if cancelled is not None:
            loading.exception()
            raise cancelled
        stored = loading.result()
        if self._start_is_given_up.is_set():
            raise StartGivenUp
        return stored

    def _report_progress(self, done: int, total: int, checked_bytes: int) -> None:
        if self._admin is not None:
            self._admin.opened, self._admin.to_open = done, total
        text = f"checked {done} of {total} partitions, {checked_bytes >> 20} MiB of logs"
        _log.info(text)
        self._service_manager.tell(status(text))


async def start_broker(config: BrokerConfig, service_manager: ServiceManager | None = None) -> Broker:
    """Return a serving broker; stop it with `await broker.stop()` or use it as an async context manager."""
    broker = Broker(config, service_manager or ServiceManager({}))
    await broker.start()
    return broker
