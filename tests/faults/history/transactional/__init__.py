"""Transactions in a run: `work` has the clients, `pair` a process that copies, `checking` what must be true."""
