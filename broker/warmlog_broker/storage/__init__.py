"""The storage engine: synchronous files, no event loop and no sockets.

From the bottom: `open_files` owns descriptors; `batch_scan` walks the batches of a file, and `file_records` is one
`.log` file; `abstract_index`, `offset_index`, `time_index` and `lazy_index` find positions; `segment` puts a `.log` and
its indexes together (with `segment_indexes`, `segment_lookup` and `segment_recovery`); `segments` orders the segments
of one partition; `log` is the partition as the broker sees it.
"""
