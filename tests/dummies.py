"""Recordings without audio, and settings without a record, for tests that need neither."""

from operator import attrgetter

from lhotse import AudioSource, Recording


def dummy_recording(number, duration=1.0):
    """A recording of a file that does not exist; lhotse's own dummy is a shell command."""
    source = AudioSource("file", [0], f"dummy-{number:04d}.wav")
    samples = round(16000 * duration)
    return Recording(f"dummy-recording-{number:04d}", [source], 16000, samples, duration)


def setting_of(config):
    """`Run.setting` of a configuration, which records nothing."""
    return lambda key: attrgetter(key)(config)
