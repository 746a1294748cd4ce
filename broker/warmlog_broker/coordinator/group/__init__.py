"""Consumer groups as a service; `decisions` is the state machine that it makes durable."""
