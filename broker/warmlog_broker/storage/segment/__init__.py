"""One segment, its lookups and files, and the ordered map of a log's segments."""
