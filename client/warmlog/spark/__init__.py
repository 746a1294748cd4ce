"""Spark: `spark.read.format("warmlog")`, a data source in Python that reads topics as Arrow record batches.

::

    spark.read.format("warmlog").option("bootstrap.servers", "127.0.0.1:7400").option("subscribe", "flights").load()

Spark finds the format by itself if warmlog is installed (see the module `pyspark_warmlog`); `register` is for sessions
that looked up formats before that. `options.option_table` has the options, `options.schema` the columns. Python workers
must be able to import warmlog, numpy and pyarrow: if `python3` is not the driver's Python, set `PYSPARK_PYTHON` (or
spark.pyspark.python).
"""

from typing import Any


def register(spark: Any) -> None:
    """Register the format with a Spark session; may be called again."""
    from pyspark.errors import AnalysisException

    from warmlog.spark.source import WarmlogDataSource

    try:
        spark.dataSource.register(WarmlogDataSource)
    except AnalysisException as error:  # Spark 4.0 if it has found the format; later versions replace it
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


__all__ = ["register"]
