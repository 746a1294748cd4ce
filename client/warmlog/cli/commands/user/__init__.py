"""`warmlog user`: users and their passwords."""
