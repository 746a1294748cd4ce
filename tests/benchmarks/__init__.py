"""What warmlog does in a second on this machine, and what the machine itself could do: `make bench`.

One partition, values of 100 bytes, one producer process, the broker a process of its own with its default settings:
every acknowledgement waits for fdatasync. Runs of the same kind are not done one after another but in rounds, so that
what else the machine does meets all of them; the median of each is reported, and the raw limits come from the same
rounds. MB are 10^6 bytes of values. Each run checks what it produced or read: it cannot measure nothing.
"""
