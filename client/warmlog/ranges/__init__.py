"""Reading ranges of partitions in bulk, as Arrow: what Spark's tasks and `Consumer.to_arrow` have in common.

`points` says in words where to start and end, `discover` asks the broker what there is, `resolve` makes ranges of the
two, and `range_reader` reads them. Everything but `discover` and `range_reader` is plain functions without I/O, and
only `range_reader` needs numpy and pyarrow.
"""
