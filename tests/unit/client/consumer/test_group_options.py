"""Options of a consumer with a group that cannot be right."""

from typing import Any

import pytest

import warmlog
import warmlog.blocking


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "group='': a name of 1 to 249 bytes"),
        ({"group": "g" * 250}, "a name of 1 to 249 bytes"),
        ({"instance_id": ""}, "instance_id=''"),
        ({"commit": "often"}, "commit='often': one of auto, manual expected"),
        ({"commit_interval_ms": 0}, "commit_interval_ms=0: at least 1 expected"),
        ({"session_timeout_ms": -5}, "session_timeout_ms=-5: at least 1 expected"),
        ({"on_lost": 5}, "on_lost=5: a function that takes a list of partitions is expected"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(warmlog.InvalidConfig, match=message):
        warmlog.Consumer("127.0.0.1:1", topics=["t"], **{"group": "etl", **options})


def test_options_of_members_need_a_group() -> None:
    texts = [{"instance_id": "i"}, {"commit": "manual"}, {"assignor": "range"}, {"on_lost": print}]
    for option in [*texts, {"session_timeout_ms": 6000}, {"commit_interval_ms": 100}, {"max_poll_interval_ms": 1000}]:
        with pytest.raises(TypeError, match=rf"^{next(iter(option))}=.* is for a consumer with a group"):
            warmlog.Consumer("127.0.0.1:1", topics=["t"], **option)


def test_callbacks_of_members_are_refused_with_partitions() -> None:
    with pytest.raises(TypeError, match=r"^on_revoked=.* is for members of a group: give topics or pattern"):
        warmlog.Consumer("127.0.0.1:1", partitions=["t-0"], group="etl", on_revoked=print)
    warmlog.Consumer("127.0.0.1:1", partitions=["t-0"], group="etl", commit="manual", commit_interval_ms=100)


def test_callbacks_of_the_blocking_consumer_are_plain_functions() -> None:
    async def revoked(_: object) -> None: ...

    with pytest.raises(warmlog.InvalidConfig, match="a plain function is expected, not a coroutine function"):
        warmlog.blocking.Consumer("127.0.0.1:1", topics=["t"], group="etl", on_revoked=revoked)


@pytest.mark.parametrize("option", ["group", "instance_id", "pattern"])
def test_text_without_utf_8_is_refused_before_a_broker_is_asked(option: str) -> None:
    options = {"group": "g", **({} if option == "pattern" else {"topics": ["t"]}), option: "\udcff"}
    with pytest.raises(warmlog.InvalidConfig, match=option):
        warmlog.Consumer("127.0.0.1:1", **options)  # type: ignore[arg-type]
