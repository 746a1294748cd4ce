"""One compacted internal topic as the state of a coordinator: decide, append, apply when durable, respond."""
