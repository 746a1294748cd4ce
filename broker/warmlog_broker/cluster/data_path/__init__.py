"""What replicas of a broker do: by themselves, with other brokers, and for coordinators and handlers."""
