"""Arrow columns as batches, and the blocking producer that sends them."""
