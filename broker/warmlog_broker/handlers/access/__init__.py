"""Requests about users and their rights, and authentication."""
