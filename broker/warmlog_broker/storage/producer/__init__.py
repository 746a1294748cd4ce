"""Producer state: idempotence, open transactions, snapshots."""
