"""Imported by every Python that the tests' Spark starts: its daemons import what workers need before they fork them.

Otherwise each worker imports it anew, and Spark starts new workers whenever a task or a planning has failed.
"""
# ruff: noqa: F401

import os
import sys

if "pyspark.daemon" in sys.orig_argv:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts threads otherwise, and a fork takes none along
    import pyarrow
    import pyspark.sql.datasource

    import warmlog.ranges.range_reader
    import warmlog.spark.read.planning
    import warmlog.spark.source
    import warmlog.spark.write.writer
