"""A `.log` file as batches: append, scan, validate, step over damage."""
