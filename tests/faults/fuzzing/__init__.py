"""Hostile peers: frames that are valid but for one thing, sent to a real broker by the hundred thousand.

`corpus` has the valid frames, `mutation` what is done to them, `peers` who sends them, `run` counts and judges.
`python -m faults.fuzzing --help` runs it by hand.
"""
