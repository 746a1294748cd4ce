"""What callers give to the admin client: values as people write them, and types that never reach a broker."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from warmlog import Admin
from warmlog.admin.arguments import setting_texts

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
