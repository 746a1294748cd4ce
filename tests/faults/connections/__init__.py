"""Thousands of connections: held idle and served in turn, half-open ones cut at their deadline, all given back.

`crowd` is the clients, in a process of their own; `run` counts and judges. `python -m faults.connections --help` runs
it by hand.
"""
