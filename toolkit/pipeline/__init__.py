"""The data pipeline: steps run over partitions, in local processes or on Spark (C15-C24)."""
