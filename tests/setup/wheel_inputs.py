"""Inputs of `setup/test-dist`: a folder with `bundle`, and `audio` with texts beside it.

    .venv/bin/python -m tests.setup.wheel_inputs OUT [BUNDLE]

Two recordings of the test part of the corpus that the bundle's run was trained on; without a
bundle, one of two words and noise that it takes for them.
"""

import sys
from pathlib import Path

import soundfile


def of_run(bundle: Path, audio: Path) -> None:
    """Write two recordings of the demo corpus in the run directory around a bundle."""
    corpus = bundle.parent / "corpus" / "test"
    lines = [line for path in sorted(corpus.rglob("*.trans.txt")) for line in path.open()]
    if len(lines) < 2:
        sys.exit(f"{bundle}: no recordings in {corpus}; name a folder of audio and texts, AUDIO=")
    for line in (lines[0], lines[-1]):
        name, _, text = line.partition(" ")
        (path,) = corpus.rglob(f"{name}.flac")
        soundfile.write(audio / f"{name}.wav", *soundfile.read(path))
        (audio / f"{name}.txt").write_text(text)


def write_random_inputs(out: Path) -> None:
    """Write a bundle whose network was not trained, and two recordings of noise."""
    from tests.decode.conftest import Recogniser, make_babble, make_bundle

    (out / "work").mkdir()
    make_bundle(Recogniser(out / "work"), out / "bundle")
    for seed, (name, text) in enumerate((("first", "NO"), ("second", "YES NO")), 5):
        samples = make_babble(seed, 1.5).clamp(-0.9, 0.9)
        soundfile.write(out / "audio" / f"{name}.wav", samples.numpy(), 16000)
        (out / "audio" / f"{name}.txt").write_text(text + "\n")


def main(out: Path, bundle: Path | None = None) -> None:
    """Write the folder `out`."""
    (out / "audio").mkdir(parents=True)
    if bundle is None:
        write_random_inputs(out)
    else:
        (out / "bundle").symlink_to(bundle.resolve())
        of_run(bundle, out / "audio")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
