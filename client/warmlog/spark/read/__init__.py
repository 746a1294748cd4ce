"""Planning and reading of a batch query."""
