"""The commands of `warmlog txn`."""
