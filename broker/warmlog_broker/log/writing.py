"""Writing all of something: a system call may write less than it was asked to."""

import errno
import os


def write_all(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Writes `data` at `position`, in as many steps as it takes. OSError when the disk refuses; some may be written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        if not written:
            raise OSError(errno.EIO, f"the disk takes none of {len(view)} bytes at position {position}")
        view = view[written:]
        position += written
