"""Measures the storage engine, without a broker around it: `make bench-storage`."""
