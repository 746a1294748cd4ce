"""Transactions in a run: `work` has the clients, `pair` a process that copies, `notes` what they saw; see `checking`."""
