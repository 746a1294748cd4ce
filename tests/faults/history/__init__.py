"""A checker of histories: real clients work against a real broker while faults happen, and then everything is compared.

`target` is the broker with what surrounds it (a disk whose power can be cut, a proxy whose connections can), `faults`
what can happen to it, `workload` who works with it, `notes` what they saw, and `checking` what must be true of that.
`python -m faults.history --help` runs it by hand.
"""
