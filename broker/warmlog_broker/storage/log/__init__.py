"""The log of one partition: append, read, flush, retain, compact, truncate."""
