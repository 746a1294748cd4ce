"""What a power cut takes of data that was acknowledged from the page cache, and whether that is within its bound.

A record that was acknowledged before its flush (`write.caching`, or `acks=1`) is due for one within `flush.ms`, or once
`flush.messages` records wait. That flush may have to wait for the one that is under way, and then takes its own time.
So what is lost was acknowledged within the last `flush.ms` and two flushes, or is among the last `flush.messages`
records and those of two flushes. `judging` says that in numbers, `measuring` cuts the power of a real broker, and
`python -m faults.losses` does so again and again.
"""
