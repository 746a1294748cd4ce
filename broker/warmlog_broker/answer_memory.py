"""Memory for answers that wait for their readers: one count over all connections.

File ranges that wait cost none; frames do, and what the transports hold of both. When there is too much of it, a
connection that has not been sent everything starts nothing more, and those whose readers stand still are cut.
"""


class AnswerMemory:
    """Counts bytes."""

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    @property
    def is_short(self) -> bool:
        return self.held_bytes > self.limit_bytes
