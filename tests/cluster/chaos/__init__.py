"""Three brokers and an etcd under faults by chance, with producers and consumers that note what they were told.

`python -m cluster.chaos --faults 300 --seed 1`; what must be true in the end is that of `faults.history`, and all
replicas of a partition have the same bytes.
"""
