"""What somebody can do to the files of a log while its broker is down, and what readers must make of the rest.

`damaging` has the ways to lose data, `reading` the ways to read a topic, and `judging` compares what was there with
what was read and what was told.
"""
