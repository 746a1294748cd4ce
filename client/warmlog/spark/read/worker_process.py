"""Keeps modules out of garbage collections in Python processes that Spark reuses.

Such a process, forked by pyspark.daemon, runs a full collection after each task. Nearly all objects that it visits
belong to the modules of pyspark, numpy and pyarrow, which stay.
"""

import gc
import os
import sys
from functools import cache

_WORKER = "pyspark.worker"
_IS_REUSED = "SPARK_REUSE_WORKER"
"""Set by Spark if workers are reused; pyspark.daemon checks it too."""


@cache
def hide_modules_from_collector() -> None:
    """Freeze all present objects, once, in a worker that Spark reuses.

    Reference cycles among objects that exist now, also those of other tasks, will not be collected; later ones will.
    https://docs.python.org/3/library/gc.html#gc.freeze
    """
    if _WORKER in sys.modules and _IS_REUSED in os.environ:
        gc.collect()
        gc.freeze()
