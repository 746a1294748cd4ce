"""Spark: `spark.read.format("warmlog")`, a data source in Python that reads topics as Arrow record batches.

::

    spark.read.format("warmlog").option("bootstrap.servers", "127.0.0.1:7400").option("subscribe", "flights").load()

Spark finds the format by itself where warmlog is installed (see the module `pyspark_warmlog`); `register` is for
sessions that looked up formats before that. What options there are is told in `options`, the columns in `schema`.
Python workers must be able to import warmlog, numpy and pyarrow: where `python3` is not the driver's Python, set
`PYSPARK_PYTHON` (or spark.pyspark.python).
"""

from typing import Any


def register(spark: Any) -> None:
    """Make the format known to one Spark session. Harmless when it is known already."""
    from pyspark.errors import AnalysisException

    from warmlog.spark.source import WarmlogDataSource

    try:
        spark.dataSource.register(WarmlogDataSource)
    except AnalysisException as error:  # Spark 4.0, where the format was found before; later ones just take the new one
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


__all__ = ["register"]
