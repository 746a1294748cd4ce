"""Requests are checked here before their handlers run: which rights each API needs, and what is refused how."""
