"""Arrow tables as batches, and the blocking producer that sends them."""
