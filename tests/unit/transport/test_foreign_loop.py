"""A client that is used in another event loop than the one it was started in: an error at once, and no hang."""

import asyncio
import gc
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

import warmlog
from broker_in_thread import broker_in_thread
from fake_broker import FakeBroker
from waiting import wait_until
from warmlog_protocol.batch import encode_batch

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TOPIC = "t"
SOON_S = 25
OPTIONS: dict[str, Any] = {"retry_backoff_ms": 5, "request_timeout_ms": 60_000}

Client = warmlog.Producer | warmlog.Consumer | warmlog.Admin
Use = Callable[[Any], Awaitable[object]]


def call(use: Callable[[Any], object]) -> Use:
    """A use that does not wait."""

    async def called(client: Any) -> object:
        return use(client)

    return called


PRODUCER_USES: dict[str, Use] = {
    "send": call(lambda client: client.send(TOPIC, b"x", timestamp_ms=1)),
    "send_many": lambda client: client.send_many(TOPIC, [b"x"]),
    "flush": lambda client: client.flush(),
    "close": lambda client: client.close(),
    "exit": lambda client: client.__aexit__(None, None, None),
}
CONSUMER_USES: dict[str, Use] = {
    "batches": call(lambda client: client.batches()),
    "records": call(lambda client: client.records()),
    "arrow": call(lambda client: client.arrow()),
    "to_arrow": lambda client: client.to_arrow(),
    "assignment": call(lambda client: client.assignment),
    "position": call(lambda client: client.position(TOPIC, 0)),
    "seek": call(lambda client: client.seek(TOPIC, 0, 1)),
    "seek_to_beginning": lambda client: client.seek_to_beginning(),
    "seek_to_end": lambda client: client.seek_to_end(),
    "seek_to_time": lambda client: client.seek_to_time(0),
    "close": lambda client: client.close(),
    "exit": lambda client: client.__aexit__(None, None, None),
}
ADMIN_USES: dict[str, Use] = {
    "create_topic": lambda client: client.create_topic("new"),
    "delete_topic": lambda client: client.delete_topic(TOPIC),
    "list_topics": lambda client: client.list_topics(),
    "describe_topic": lambda client: client.describe_topic(TOPIC),
    "describe_broker": lambda client: client.describe_broker(),
    "describe_log_dirs": lambda client: client.describe_log_dirs(),
    "describe_status": lambda client: client.describe_status(),
    "describe_partitions": lambda client: client.describe_partitions(),
    "trace_index": lambda client: client.trace_index(TOPIC, 0),
    "move_partition": lambda client: client.move_partition(TOPIC, 0, "/"),
    "list_offsets": lambda client: client.list_offsets(TOPIC, "latest"),
    "look_up_offsets": lambda client: client.look_up_offsets(TOPIC, "latest"),
    "delete_records": lambda client: client.delete_records({(TOPIC, 0): 1}),
    "epoch_ends": lambda client: client.epoch_ends({(TOPIC, 0): 0}),
    "close": lambda client: client.close(),
    "exit": lambda client: client.__aexit__(None, None, None),
}
USES = [
    *[pytest.param(warmlog.Producer, use, id=f"producer {name}") for name, use in PRODUCER_USES.items()],
    *[pytest.param(warmlog.Consumer, use, id=f"consumer {name}") for name, use in CONSUMER_USES.items()],
    *[pytest.param(warmlog.Admin, use, id=f"admin {name}") for name, use in ADMIN_USES.items()],
]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with broker_in_thread(t=1) as fake:
        fake.add_batch(TOPIC, 0, encode_batch([b"a", b"b"], timestamps_ms=1))
        yield fake


async def started(kind: type[Client], address: str) -> Client:
    client: Client
    if kind is warmlog.Consumer:
        client = await warmlog.Consumer(address, topics=[TOPIC], **OPTIONS).start()
    elif kind is warmlog.Producer:
        client = await warmlog.Producer(address, **OPTIONS).start()
        await client.send(TOPIC, b"known")
    else:
        client = await warmlog.Admin(address, **OPTIONS).start()
    return client


@contextmanager
def left_open() -> Iterator[None]:
    """What a loop leaves open is closed by the garbage collector, with warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def start_in_run(kind: type[Client], address: str) -> Client:
    return asyncio.run(started(kind, address))


def start_in_uvloop(kind: type[Client], address: str) -> Client:
    return uvloop.run(started(kind, address))


def start_and_close_the_loop(kind: type[Client], address: str) -> Client:
    """Without the end of its tasks, which asyncio.run sees to."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(started(kind, address))
    finally:
        loop.close()


async def itself(sent: Awaitable[object]) -> object:
    return await sent


async def soon(use: Use, client: object) -> object:
    return await asyncio.wait_for(use(client), SOON_S)


@pytest.mark.parametrize("start", [start_in_run, start_in_uvloop, start_and_close_the_loop])
@pytest.mark.parametrize(("kind", "use"), USES)
def test_after_its_loop_was_closed_a_client_says_so_at_once(
    broker: FakeBroker, start: Callable[[type[Client], str], Client], kind: type[Client], use: Use
) -> None:
    with left_open():
        client = start(kind, broker.address)
        for _ in range(2):
            with pytest.raises(warmlog.WrongEventLoop, match=r"is closed.*one asyncio\.run"):
                asyncio.run(soon(use, client))
        del client


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self._loop

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.mark.parametrize(("kind", "use"), USES)
def test_a_client_of_another_threads_loop_says_where_to_call(broker: FakeBroker, kind: type[Client], use: Use) -> None:
    with LoopThread() as loop:

        def there(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(SOON_S)

        client: Any = there(started(kind, broker.address))
        with pytest.raises(warmlog.WrongEventLoop, match=r"another event loop.*run_coroutine_threadsafe"):
            asyncio.run(soon(use, client))
        for use_it in STILL_WORKS[kind]:
            there(soon(use_it, client))
        there(client.close())
    wait_until(lambda: not broker.connections)


async def first_record(client: warmlog.Consumer) -> None:
    assert (await anext(client.records())).value == b"a"


STILL_WORKS: dict[type[Client], list[Use]] = {
    warmlog.Producer: [lambda client: client.send(TOPIC, b"x"), lambda client: client.flush()],
    warmlog.Consumer: [first_record],
    warmlog.Admin: [lambda client: client.list_offsets(TOPIC, "latest")],
}


# --- what outlives its loop beside the client itself ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["batches", "records", "arrow"])
def test_an_iterator_that_is_continued_in_another_loop_says_so(broker: FakeBroker, method: str) -> None:
    async def begin() -> Any:
        client: Any = await started(warmlog.Consumer, broker.address)
        iterator = getattr(client, method)()
        await anext(iterator)
        if method == "records":
            await anext(iterator)  # both are in one batch: the next must be fetched
        return client, iterator

    with left_open():
        client, iterator = asyncio.run(begin())
        with pytest.raises(warmlog.WrongEventLoop):
            asyncio.run(soon(anext, iterator))
        del client, iterator


@pytest.mark.parametrize("topic", [TOPIC, "not yet known"])
def test_a_record_that_was_never_settled_is_not_waited_for_in_another_loop(broker: FakeBroker, topic: str) -> None:
    async def send() -> Any:
        client: Any = await started(warmlog.Producer, broker.address)
        broker.is_silent = True
        return client, client.send(topic, b"x")

    with left_open():
        loop = asyncio.new_event_loop()
        client, sent = loop.run_until_complete(send())
        loop.close()
        with pytest.raises(warmlog.WrongEventLoop):
            asyncio.run(soon(itself, sent))
        broker.is_silent = False
        client, sent = asyncio.run(send())
        with pytest.raises(warmlog.ClientClosed, match="stopped before this was acknowledged"):
            asyncio.run(soon(itself, sent))
        del client, sent


def test_a_record_that_is_settled_is_told_in_any_loop(broker: FakeBroker) -> None:
    async def send() -> Any:
        client: Any = await started(warmlog.Producer, broker.address)
        sent = client.send(TOPIC, b"x")
        await client.flush()
        return client, sent

    with left_open():
        client, sent = asyncio.run(send())
        assert asyncio.run(soon(itself, sent)) == (TOPIC, 0, 3, sent._batch._run_times_ms[0])
        del client, sent


@pytest.mark.parametrize("method", ["flush", "close", "drain"])
@pytest.mark.parametrize("is_run", [True, False])
def test_the_error_says_how_many_records_were_not_acknowledged(broker: FakeBroker, method: str, is_run: bool) -> None:
    async def send() -> Any:
        client: Any = await started(warmlog.Producer, broker.address)
        broker.is_silent = True
        for _ in range(3):
            client.send(TOPIC, b"x")
        client.send("not yet known", b"x")
        return client

    with left_open():
        if is_run:
            client = asyncio.run(send())
        else:
            loop = asyncio.new_event_loop()
            client = loop.run_until_complete(send())
            loop.close()
        with pytest.raises(warmlog.WrongEventLoop, match=r"; 4 records were not acknowledged$"):
            asyncio.run(soon(lambda client: getattr(client, method)(), client))
        del client


@pytest.mark.parametrize("start", [start_in_run, start_and_close_the_loop])
@pytest.mark.parametrize("key", [None, b"k"])
def test_records_are_refused_soon_after_the_loop_was_closed(
    broker: FakeBroker, start: Callable[[type[Client], str], Client], key: bytes | None
) -> None:
    """The short way of `send` does not look at the loop; it ends with the millisecond."""
    with left_open():
        client: Any = start(warmlog.Producer, broker.address)

        with pytest.raises(warmlog.WrongEventLoop):
            send_many_times(client, key=key)
        del client


def send_many_times(client: warmlog.Producer, **record: Any) -> None:
    for _ in range(200_000):
        client.send(TOPIC, b"x", **record)


def test_a_thread_that_sends_while_the_loop_runs_in_another_one_hears_of_it(broker: FakeBroker) -> None:
    with LoopThread() as loop:
        client: Any = asyncio.run_coroutine_threadsafe(started(warmlog.Producer, broker.address), loop).result(SOON_S)
        with pytest.raises(warmlog.WrongEventLoop, match="run_coroutine_threadsafe"):
            client.send(TOPIC, b"x")
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(SOON_S)


@pytest.mark.parametrize("topic", [TOPIC, "not yet known"])
@pytest.mark.parametrize("record", [{}, {"key": b"k"}, {"key": b"k", "timestamp_ms": 5}], ids=str)
def test_a_send_of_another_thread_names_what_is_for_it(broker: FakeBroker, topic: str, record: dict[str, Any]) -> None:
    with LoopThread() as loop:
        client: Any = asyncio.run_coroutine_threadsafe(started(warmlog.Producer, broker.address), loop).result(SOON_S)
        with pytest.raises(warmlog.WrongEventLoop, match=r"call_soon_threadsafe\(producer\.send.*blocking\.Producer"):
            client.send(topic, b"x", **record)
        loop.call_soon_threadsafe(lambda: client.send(TOPIC, b"as the error says", **record))
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(SOON_S)
    assert b"as the error says" in broker.topics[TOPIC][0].values()


@pytest.mark.parametrize("record", [{}, {"key": b"k"}, {"key": b"k", "timestamp_ms": 5}], ids=str)
def test_many_sends_of_another_thread_to_an_open_batch_are_refused(broker: FakeBroker, record: dict[str, Any]) -> None:
    """The fast path does not look at the thread; it ends with the millisecond, or with the memory of the batch."""
    with LoopThread() as loop:
        options = {**OPTIONS, "linger_ms": 60_000}
        client: Any = asyncio.run_coroutine_threadsafe(
            warmlog.Producer(broker.address, **options).start(), loop
        ).result(SOON_S)

        async def open_batch() -> None:
            await client.send(TOPIC, b"known", **record)
            client.send(TOPIC, b"opens", **record)

        asyncio.run_coroutine_threadsafe(open_batch(), loop).result(SOON_S)
        with pytest.raises(warmlog.WrongEventLoop, match="call_soon_threadsafe"):
            send_many_times(client, **record)
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(SOON_S)


def test_between_two_runs_of_its_loop_a_client_can_be_used_where_nothing_is_waited_for(broker: FakeBroker) -> None:
    loop = asyncio.new_event_loop()
    client: Any = loop.run_until_complete(started(warmlog.Producer, broker.address))
    for _ in range(3):
        client.send(TOPIC, b"between", timestamp_ms=1)
    loop.run_until_complete(client.flush())
    consumer: Any = loop.run_until_complete(started(warmlog.Consumer, broker.address))
    consumer.seek(TOPIC, 0, 3)
    records = consumer.records()
    assert loop.run_until_complete(anext(records)).value == b"between"
    loop.run_until_complete(consumer.close())
    loop.run_until_complete(client.close())
    loop.close()
