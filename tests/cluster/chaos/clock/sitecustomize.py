"""A clock that a test moves while this process runs: by as many nanoseconds as the file MOVED_CLOCK has.

`time.time` stays right: gRPC computes deadlines with it, for a library in C that has the machine's clock.
"""

import mmap
import os
import time

with open(os.environ["MOVED_CLOCK"], "rb") as _file:
    _moved = mmap.mmap(_file.fileno(), 0, access=mmap.ACCESS_READ)
_real_ns = time.time_ns
time.time_ns = lambda: _real_ns() + int.from_bytes(_moved, "little", signed=True)
