"""What an acknowledgement means on a topic, in the words that broker and clients share."""

from collections.abc import Mapping
from typing import Self

from msgspec import Struct

NO_BOUND = 2**63 - 1
"""flush.messages if it is not set."""


class Durability(Struct, frozen=True):
    """Three settings of a topic. As text: what is on disk when a batch is acknowledged, for each value of `acks`."""

    write_caching: bool
    """Whether acks=all acknowledges from the page cache, without fsync: a power cut may lose the records."""
    flush_ms: int
    """Records acknowledged from the page cache are on disk after this time."""
    flush_messages: int | None
    """A flush begins at once when this many records are not flushed; None: only `flush_ms` counts."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        """Return the durability of a topic with `settings`, as text by name."""
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
