"""What of a file is in the page cache, and putting it out of there: for tests and benchmarks, Linux only."""

import ctypes
import mmap
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def evict(path: Path) -> None:
    """Has the kernel forget a file's pages, but for those that somebody has mapped."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def resident_pages(path: Path) -> set[int]:
    """The pages of a file that are in the page cache, by mincore(2)."""
    size_bytes = path.stat().st_size
    if not size_bytes:
        return set()
    pages = -(-size_bytes // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        address = ctypes.c_char.from_buffer(mapped)
        failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(size_bytes), found)
        del address
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return {page for page in range(pages) if found[page] & 1}
