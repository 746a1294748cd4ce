"""The export to Parquet."""
