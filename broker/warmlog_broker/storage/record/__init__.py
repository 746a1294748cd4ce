"""One `.log` file as batches: append, scan, validate, skip damage."""
