"""Imported by every Python that the tests' Spark starts: its daemons and its runners of streams are forks.

Otherwise each of them, and each worker, imports all that they need anew, and Spark starts new ones for each stream and
whenever a task or a planning has failed.
"""

import os
import sys

if "SPARK_FORK_SERVER" in os.environ and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark."):
    tests = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100 - pathlib takes longer to import than the rest
    sys.path.insert(0, tests)
    from fork_client import run_in_fork

    os._exit(run_in_fork(os.environ["SPARK_FORK_SERVER"], sys.orig_argv[2:]))
