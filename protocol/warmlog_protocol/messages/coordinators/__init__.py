"""Requests to coordinators: groups, transactions, jobs."""
