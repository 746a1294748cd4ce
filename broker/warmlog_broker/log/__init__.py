"""The storage engine: synchronous files, no event loop and no sockets.

From the bottom: `open_files` owns descriptors; `abstract_index`, `offset_index`, `time_index` and `lazy_index` find
positions; `file_records` is one `.log` file; `segment` puts a `.log` and its indexes together; `segments` orders the
segments of one partition; `log` is the partition as the broker sees it.
"""
