"""Clients of Kafka in a run, beside warmlog's own: `writers` in the process of the run, `processes` for the others."""
