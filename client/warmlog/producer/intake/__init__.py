"""What callers pass to a producer, checked and brought into one form."""
