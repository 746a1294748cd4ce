"""Where reading can go on behind damage of unknown extent."""

from collections.abc import Awaitable, Callable


async def next_readable(is_readable: Callable[[int], Awaitable[bool]], damaged: int, end: int) -> int:
    """The first offset after `damaged` that can be read, `end` if there is none before it.

    Asks about 2 log2(extent) times: in growing steps until an offset can be read, and then between the last two.
    Damage is taken to be one stretch. Of several that lie close together it may skip more than it must.
    """
    unreadable, step = damaged, 1
    while (candidate := min(unreadable + step, end)) < end and not await is_readable(candidate):
        unreadable, step = candidate, step * 2
    readable = candidate
    while readable - unreadable > 1:
        middle = (unreadable + readable) // 2
        if await is_readable(middle):
            readable = middle
        else:
            unreadable = middle
    return readable
