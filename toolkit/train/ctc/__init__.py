"""What the CTC recipe trains with: records, parallel readers, the states of a training (A6-A24)."""
