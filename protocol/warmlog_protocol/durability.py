"""What an acknowledgement means on a topic: broker and clients say it in the same words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

NO_BOUND = 2**63 - 1
"""flush.messages if it is not set."""


@dataclass(frozen=True, slots=True)
class Durability:
    """Three settings of a topic. As text: what is on disk at the response, for each value of `acks`."""

    write_caching: bool
    """Whether the response to acks=all comes from the page cache, not after fsync: a power cut may lose the records."""
    flush_ms: int
    """Records acknowledged from the page cache are on disk after this time."""
    flush_messages: int | None
    """At so many records a flush begins at once; None: at no number of them."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        """By the settings of a topic: their texts by their names."""
        flush_messages = int(settings["flush.messages"])
        return cls(
            settings["write.caching"] == "true",
            int(settings["flush.ms"]),
            None if flush_messages == NO_BOUND else flush_messages,
        )

    def __str__(self) -> str:
        bound = f"flushed within {self.flush_ms} ms"
        if self.flush_messages is not None:
            bound += f" or at {self.flush_messages} records"
        if self.write_caching:
            return f"acks=all and acks=1 acknowledge from the page cache (write.caching), {bound}"
        return f"acks=all acknowledges after fsync; acks=1 from the page cache, {bound}"
