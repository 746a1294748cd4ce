"""What a task does for the Python process that runs it, which Spark uses again for other tasks.

Where it does, that process, forked by pyspark.daemon, has the garbage collector look at all there is after each task,
before it takes the next. Nearly all of that are the modules of pyspark, numpy and pyarrow, and they stay.
"""

import gc
import os
import sys
from functools import cache

_WORKER = "pyspark.worker"
_IS_REUSED = "SPARK_REUSE_WORKER"
"""Set by Spark where workers are used again; pyspark.daemon goes by it, too."""


@cache
def hide_modules_from_collector() -> None:
    """In a worker that Spark uses again, takes what is there now out of the collector's sight, the first time.

    Cycles of objects that are in use now, be they of another task that keeps something in its process, are not
    collected any more when they are dropped; what comes later is looked at as before.
    https://docs.python.org/3/library/gc.html#gc.freeze
    """
    if _WORKER in sys.modules and _IS_REUSED in os.environ:
        gc.collect()
        gc.freeze()
