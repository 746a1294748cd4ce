"""One segment with its files and lookups, and the ordered map of a log's segments."""
