"""One segment with its files and lookups, its `.log` as batches, and the ordered map of a log's segments."""
