"""`warmlog user`, `acl` and `quota`: who may do what, and how much."""
