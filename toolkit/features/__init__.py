"""Feature extraction, normalisation, low frame rate, augmentation and storage."""
