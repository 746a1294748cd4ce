"""Spark: `spark.read.format("warmlog")`, a data source in Python that reads topics as Arrow record batches.

::

    spark.read.format("warmlog").option("bootstrap.servers", "127.0.0.1:7400").option("subscribe", "flights").load()

Spark finds the format by itself where warmlog is installed (see the module `pyspark_warmlog`); `register` is for
sessions that looked up formats before that. What options there are is told in `options`, the columns in `schema`.
"""

from typing import Any


def register(spark: Any) -> None:
    """Make the format known to one Spark session. Harmless when it is known already."""
    from warmlog.spark.source import WarmlogDataSource

    spark.dataSource.register(WarmlogDataSource)


__all__ = ["register"]
