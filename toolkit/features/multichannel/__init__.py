"""Microphone arrays (C1): echo cancellation and beamforming, the front end of a device."""
