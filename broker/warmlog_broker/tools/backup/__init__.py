"""Backups of data directories, which a broker may be using, and their restoration."""
