"""Data-parallel training: S-SGD, A-SGD, GTC, BMUF, ADPSGD, H-ADPSGD (A19, B1-B6, C28-C31)."""
