"""Users, what they may do, and how much of it."""
