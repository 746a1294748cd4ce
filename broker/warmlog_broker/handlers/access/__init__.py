"""Requests about users, their rights and quotas, and authentication."""
