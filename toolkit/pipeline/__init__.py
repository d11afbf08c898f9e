"""The data pipeline: steps over partitions, in local processes or on Spark (C15-C24)."""
