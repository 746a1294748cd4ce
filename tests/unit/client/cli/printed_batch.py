"""A batch with what the writers of `warmlog consume` look at, made from lists."""

from dataclasses import dataclass, field
from typing import cast

from warmlog.records.batch import Batch


@dataclass
class PrintedBatch:
    values: list[bytes | None]
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[list[tuple[str, bytes | None]]] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    topic: str = "flights"
    partition: int = 3
    base_offset: int = 100
    is_log_append_time: bool = False

    def __post_init__(self) -> None:
        self.keys = self.keys or [None] * len(self)
        self.headers = self.headers or [[]] * len(self)
        self.timestamps_ms = self.timestamps_ms or [1372636800123] * len(self)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def has_headers(self) -> bool:
        return any(self.headers)

    @property
    def offsets(self) -> list[int]:
        return list(range(self.base_offset, self.base_offset + len(self)))


def batch_of(*values: bytes | None, **columns: object) -> Batch:
    """A batch of `values`; other columns by name."""
    return cast("Batch", PrintedBatch(list(values), **columns))  # type: ignore[arg-type]
