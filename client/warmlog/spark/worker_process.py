"""What a task does for the Python process that runs it, which Spark uses again for other tasks.

After each task that process (pyspark.daemon) has the garbage collector look at all there is before it takes the next.
Nearly all of that are the modules of pyspark, numpy and pyarrow, and they stay.
"""

import gc
import sys

_WORKER = "pyspark.worker"


def hide_modules_from_collector() -> None:
    """In a worker of Spark's, takes what is there now out of the collector's sight; once is enough.

    Call it when all modules are loaded. A cycle that is there now and is dropped later is not collected any more:
    https://docs.python.org/3/library/gc.html#gc.freeze
    """
    if _WORKER in sys.modules and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
