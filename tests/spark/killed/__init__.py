"""Streams of Spark with real executors, whose driver, executors, workers and broker are killed: `make spark-kills`."""
