"""Microphone arrays (C1): echo cancellation, beamforming, and a device's streaming front end."""
