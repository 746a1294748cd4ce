"""The options of the Spark source, and the schema that they choose."""
