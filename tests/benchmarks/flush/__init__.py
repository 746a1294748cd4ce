"""Group commit: what a flush costs, and what acks=all costs, with 1 to 1,000 active partitions."""
