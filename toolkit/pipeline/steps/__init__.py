"""The steps of the data pipeline, one module each."""
