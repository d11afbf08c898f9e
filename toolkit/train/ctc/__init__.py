"""CTC training: record files, parallel readers, objective and the training states (A6-A24)."""
