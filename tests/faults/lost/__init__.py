"""What can be lost of a log while its broker is down, and what readers must make of the rest.

`damaging` has the ways to lose data, `writing` fills partitions of which each suffers one of them, `reading` reads
them in each way that there is, and `judging` compares what was written with what was read and what was told.
"""
