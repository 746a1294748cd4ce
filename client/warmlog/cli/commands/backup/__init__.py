"""`warmlog backup` and `warmlog restore`."""
