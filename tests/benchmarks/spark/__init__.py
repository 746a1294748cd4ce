"""`make bench-spark`: what Spark makes of a topic, a broker on the same machine included."""
