"""Bulk reading of offset ranges as Arrow: what Spark's tasks, `arrow_reader` and `Consumer.to_arrow` share.

`warmlog.points` parses where to start and end, `discover` asks the broker what there is, `resolve` makes ranges of the
two, and `range_reader` reads them. Only `discover` and `range_reader` do I/O, and only the latter needs numpy and
pyarrow.
"""
