"""Hours of even load, and whether anything drifts: memory, descriptors, maps, threads, latency, lag.

`run` starts a broker and three processes of clients, finds the peak of that very mix, holds a share of it and samples
all processes; `producing`, `consuming` and `churning` are the clients, each a process of its own that `worker` drives;
`sampling` reads /proc, `speed` times the machine, and `slopes` decides what counts as drift.
`python -m faults.soak --help` runs it.
"""
