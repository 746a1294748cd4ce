"""Lets Spark find the format "warmlog" by itself, without `spark.dataSource.register`.

When Spark first looks up a format in Python, it imports every top-level module whose name begins with `pyspark_` and
takes the data source named `DefaultSource` in it. All formats wait for that, so it loads neither pyarrow nor numpy.
"""

from warmlog.spark.source import WarmlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
