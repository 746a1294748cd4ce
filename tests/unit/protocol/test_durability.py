"""What an acknowledgement means, in words."""

import pytest

from warmlog_broker.storage.config import LogConfig
from warmlog_protocol.durability import Durability


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "acks=all acknowledges after fsync; acks=1 from the page cache, flushed within 100 ms"),
        (
            {"flush.ms": "5", "flush.messages": "20"},
            "acks=all acknowledges after fsync; acks=1 from the page cache, flushed within 5 ms or at 20 records",
        ),
        (
            {"write.caching": "true", "flush.messages": "1000"},
            "acks=all and acks=1 acknowledge from the page cache (write.caching), "
            "flushed within 100 ms or at 1000 records",
        ),
    ],
)
def test_it_says_what_is_on_disk_when(settings: dict[str, str], text: str) -> None:
    assert str(Durability.of(LogConfig.from_settings(settings).to_settings())) == text
