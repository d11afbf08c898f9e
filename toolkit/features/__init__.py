"""Front ends, normalisation, low frame rate, augmentation, storage."""
