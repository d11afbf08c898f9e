"""Media files that libsndfile does not read, made by PyAV."""

import gc

import numpy as np


def encode_media(
    path,
    codec,
    container=None,
    rate=16000,
    channels=1,
    seconds=2.0,
    streams=1,
    language=None,
    options=None,
):
    """Write a chirp with noise; return its samples [channels, S] float32.

    Args:
      path: of the file.
      codec, container: as FFmpeg names them.
      streams: of sound, all the same.
      options: of the container, as FFmpeg names them.
    """
    import av

    layout = {1: "mono", 2: "stereo"}[channels]
    times = np.arange(round(rate * seconds)) / rate
    noise = 0.02 * np.random.default_rng(0).standard_normal(len(times))
    chirp = 0.2 * np.sin(2 * np.pi * 330 * times * (1 + 0.3 * times)) + noise
    samples = np.stack([chirp, -0.5 * chirp[::-1]])[:channels].astype(np.float32)
    with av.open(str(path), "w", format=container, options=options or {}) as output:
        audio_streams = [output.add_stream(codec, rate=rate, layout=layout) for _ in range(streams)]
        for stream in audio_streams:
            stream.metadata["language"] = language or "und"
        for stream in audio_streams:
            sample_format = stream.codec_context.format.name
            resampler = av.AudioResampler(format=sample_format, layout=layout, rate=rate)
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, 0
            for part in [*resampler.resample(frame), *resampler.resample(None), None]:
                for packet in stream.encode(part):
                    output.mux(packet)
    del resampler, audio_streams, stream
    gc.collect()  # a resampler's threads must end before a process forks
    return samples


def encode_film(path, codec="aac", sound=True):
    """Write a film of 2 s, with sound or without."""
    import av

    with av.open(str(path), "w") as output:
        video = output.add_stream("mpeg4", rate=10)
        video.width = video.height = 64
        video.pix_fmt = "yuv420p"
        audio = output.add_stream(codec, rate=16000, layout="mono") if sound else None
        for number in range(20):
            picture = np.full((64, 64, 3), 10 * number, np.uint8)
            for packet in video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                output.mux(packet)
        output.mux(video.encode(None))
        if audio is not None:
            tone = 0.2 * np.sin(np.arange(32000)[None] / 10).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16000, 0
            for part in (frame, None):
                for packet in audio.encode(part):
                    output.mux(packet)
    gc.collect()


def amr_file(path, frames=50):
    """Write AMR of 12.2 kbit/s whose 20 ms each hold noise: every frame decodes."""
    noise = np.random.default_rng(0)
    content = b"".join(b"\x3c" + noise.bytes(31) for _ in range(frames))
    path.write_bytes(b"#!AMR\n" + content)
