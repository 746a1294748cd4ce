"""Topics that are taken over from a stopped Kafka; `adopt` has the steps."""
