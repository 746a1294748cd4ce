"""Options and arguments of another type or name than clients have: refused at once, in words that say what to write."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from warmlog import Admin
from warmlog.admin.arguments import setting_texts

ADDRESS = "127.0.0.1:7400"
CLIENTS = [warmlog.Producer, warmlog.Admin, lambda address, **more: warmlog.Consumer(address, topics=["t"], **more)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"linger_ms": "5"}, "linger_ms='5': int or float expected, not str"),
        ({"batch_bytes": 1.5}, "batch_bytes=1.5: int expected, not float"),
        ({"buffer_bytes": None}, "buffer_bytes=None: int expected, not NoneType"),
        ({"high_water_bytes": "1"}, "high_water_bytes='1': int or None expected, not str"),
        ({"max_in_flight": True}, "max_in_flight=True: int expected, not bool"),
        ({"compression": None}, "compression=None: str expected, not NoneType"),
        ({"linger": 5}, "Producer() has no option 'linger'; did you mean linger_ms?"),
        ({"request_timeout": 5}, "Producer() has no option 'request_timeout'; did you mean request_timeout_ms?"),
    ],
)
def test_a_wrong_option_of_a_producer_is_named_with_what_is_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        warmlog.Producer(ADDRESS, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": "5"}, "max_bytes='5': int expected, not str"),
        ({"max_wait_ms": None}, "max_wait_ms=None: int expected, not NoneType"),
        ({"prefetch_bytes": 1.5}, "prefetch_bytes=1.5: int expected, not float"),
        ({"verify_crc": "no"}, "verify_crc='no': bool expected, not str"),
        ({"isolation": ["read_committed"]}, "isolation=['read_committed']: str expected, not list"),
        ({"session_timeout_ms": "5"}, "session_timeout_ms='5': int or None expected, not str"),
        ({"auto_offset_reset": "latest"}, "Consumer() has no option 'auto_offset_reset'; did you mean start?"),
        ({"enable_auto_commit": False}, "Consumer() has no option 'enable_auto_commit'; did you mean commit?"),
        ({"security_protocol": "SSL"}, "Consumer() has no option 'security_protocol'; did you mean ssl?"),
    ],
)
def test_a_wrong_option_of_a_consumer_is_named_with_what_is_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        warmlog.Consumer(ADDRESS, topics=["t"], **options)
    assert str(caught.value) == message


def test_an_unknown_option_is_told_before_missing_topics() -> None:
    with pytest.raises(TypeError, match="no option 'bootstrap_servers'"):
        warmlog.Consumer("orders", bootstrap_servers=ADDRESS)  # type: ignore[call-arg]


def test_an_option_that_is_near_to_none_is_told_all_of_the_class_and_the_connection() -> None:
    with pytest.raises(TypeError, match=r"Producer\(\) has no option 'zzz'; the options are acks, .*, client_name, "):
        warmlog.Producer(ADDRESS, zzz=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Consumer\(\) has no option 'prefetch'; did you mean prefetch_bytes\?"):
        warmlog.Consumer(ADDRESS, topics=["t"], prefetch=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Admin\(\) has no option 'client'; did you mean client_name\?"):
        warmlog.Admin(ADDRESS, client="me")  # type: ignore[call-arg]


@pytest.mark.parametrize("acks", [2, "most", None, [], True, 1.0])
def test_acks_is_one_of_three(acks: Any) -> None:
    with pytest.raises(warmlog.InvalidRequiredAcks, match='"all", 1 or 0 expected'):
        warmlog.Producer(ADDRESS, acks=acks)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("address", [7400, None, b"h:1", [7400], {"h": 1}])
def test_an_address_of_another_type_is_a_type_error(client: Any, address: Any) -> None:
    with pytest.raises(TypeError, match=r'bootstrap=.*: expected "HOST:PORT"'):
        client(address)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("address", ["", "localhost:abc", "h:0", [], [" "], "::1"])
def test_a_text_that_is_no_address_is_refused_by_the_constructor(client: Any, address: Any) -> None:
    with pytest.raises(warmlog.InvalidConfig, match=r'bootstrap=.*; expected "HOST:PORT"'):
        client(address)


async def test_a_wrong_partition_or_timestamp_never_reaches_the_broker() -> None:
    async with FakeBroker(t=2) as broker, warmlog.Producer(broker.address) as producer:
        for wrong in ("1", 1.0, True):
            with pytest.raises(TypeError, match=r"partition=.*: an int or None expected"):
                producer.send("t", b"x", partition=wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"partition=.*: an int or None expected"):
                await producer.send_many("t", [b"x"], partition=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timestamp_ms must be an int, not float"):
            producer.send("t", b"x", timestamp_ms=1.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timestamp_ms -1 is not between 0 and"):
            producer.send("t", b"x", timestamp_ms=-1)
    assert not broker.topics["t"][0].values()
    assert not broker.topics["t"][1].values()


Call = Callable[[Any], Coroutine[Any, Any, object]]


def test_values_of_settings_are_written_as_the_broker_reads_them() -> None:
    given = {
        "retention.ms": "7d",
        "retention.bytes": 1000,
        "write.caching": True,
        "preallocate": False,
        "min.cleanable.dirty.ratio": 0.25,
        "segment.bytes": 1e6,
        "segment.ms": timedelta(days=7),
        "flush.ms": timedelta(microseconds=2500),
    }
    assert setting_texts(given) == {
        "retention.ms": "7d",
        "retention.bytes": "1000",
        "write.caching": "true",
        "preallocate": "false",
        "min.cleanable.dirty.ratio": "0.25",
        "segment.bytes": "1000000",
        "segment.ms": "604800000ms",
        "flush.ms": "2ms",
    }


def test_a_time_does_not_become_none_at_all() -> None:
    with pytest.raises(ValueError, match=r"^retention\.ms: .* less than a millisecond"):
        setting_texts({"retention.ms": timedelta(microseconds=7)})
    assert setting_texts({"flush.ms": timedelta(0)}) == {"flush.ms": "0ms"}


@pytest.mark.parametrize("value", [None, b"7d", [1], 1j])
def test_a_value_of_another_type_is_refused_naming_the_setting_and_the_types(value: Any) -> None:
    with pytest.raises(TypeError, match=r"retention\.ms: .* is a .*; a setting is a str such as '7d', an int, a float"):
        setting_texts({"retention.ms": value})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.create_topic(7), "the topic's name must be a str, not 7"),
        (lambda admin: admin.create_topic("t", partitions="3"), "partitions must be an int, not '3'"),
        (lambda admin: admin.create_topic("t", partitions=True), "partitions must be an int, not True"),
        (lambda admin: admin.create_topic("t", configs="retention.ms=1"), "settings must be a mapping"),
        (lambda admin: admin.create_topic("t", configs={1: "1"}), "the name of a setting must be a str, not 1"),
        (lambda admin: admin.alter_topic("t", set={"flush.ms": None}), "flush.ms: None is a NoneType"),
        (
            lambda admin: admin.alter_topic("t", unset="flush.ms"),
            r"unset must be a list of str, such as \['flush.ms'\]",
        ),
        (lambda admin: admin.alter_topic(b"t", set={"flush.ms": 1}), "the topic's name must be a str, not b't'"),
        (lambda admin: admin.add_partitions("t", "4"), "total must be an int, not '4'"),
        (lambda admin: admin.delete_topic(None), "the topic's name must be a str, not None"),
        (lambda admin: admin.describe_topic(["t"]), "the topic's name must be a str"),
        (lambda admin: admin.describe_log_dirs("t"), r"topics must be a list of str, such as \['t'\]"),
        (lambda admin: admin.move_partition("t", "0", "/x"), "partition must be an int, not '0'"),
        (lambda admin: admin.list_offsets("t", "latest", "0"), r"partitions must be a list of int such as \[0, 1\]"),
        (lambda admin: admin.list_offsets("t", "latest", ["0"]), "each of partitions must be an int, not '0'"),
        (lambda admin: admin.delete_records("orders"), r"before must be a mapping such as .*, not 'orders'"),
        (lambda admin: admin.delete_records({"orders-0": 1}), r"a key is \(topic, partition\), not 'orders-0'"),
        (lambda admin: admin.delete_records({("orders", 0): "5"}), "before of orders-0 must be an int, not '5'"),
        (lambda admin: admin.epoch_ends({("orders", 0): None}), "asked of orders-0 must be an int, not None"),
        (lambda admin: admin.alter_quotas("request_rate=1", user="a"), "limits must be a mapping such as"),
        (lambda admin: admin.alter_quotas({"request_rate": "1"}, user="a"), "request_rate must be an int, not '1'"),
        (lambda admin: admin.alter_quotas({"request_rate": 1}, user=7), "user must be a str, not 7"),
        (lambda admin: admin.alter_quotas({"request_rate": 1}, client_id=b"a"), "client_id must be a str, not b'a'"),
    ],
)
async def test_a_wrong_type_is_refused_before_a_broker_is_asked(call: Call, text: str) -> None:
    """The admin client is not started: a request would be ClientClosed."""
    with pytest.raises(TypeError, match=text):
        await call(Admin("127.0.0.1:1"))


async def test_altering_without_a_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="give `set` or `unset`"):
        await Admin("127.0.0.1:1").alter_topic("t")


@pytest.mark.parametrize("value", [0, -1])
async def test_a_quota_that_allows_nothing_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=f"request_rate must be at least 1, not {value}; None removes the limit"):
        await Admin("127.0.0.1:1").alter_quotas({"request_rate": value}, user="alice")
