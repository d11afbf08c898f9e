"""Speech in which each phone is a different chord."""

import numpy as np
import soundfile

RATE = 16000


def write_audio(path, phones, rng):
    """Write a sentence with a pause before and after it."""
    pieces = [np.zeros(3200)]
    for phone in phones:
        phone_rng = np.random.default_rng(ord(phone))
        frequencies = phone_rng.uniform(200, 5000, 4)
        seconds = np.arange(round(RATE * rng.uniform(0.08, 0.12))) / RATE
        chord = sum(np.sin(2 * np.pi * f * rng.uniform(0.99, 1.01) * seconds) for f in frequencies)
        pieces.append(chord * np.hanning(len(seconds)) ** 0.3)
    samples = np.concatenate([*pieces, np.zeros(3200)]) * 0.1
    samples += 0.002 * rng.standard_normal(len(samples))
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE, subtype="PCM_16")


def sentences(lexicon, number):
    """Return sentences of three to five words."""
    rng = np.random.default_rng(7)
    return [" ".join(rng.choice(list(lexicon), rng.integers(3, 6))) for _ in range(number)]


def record(folder, lexicon, number=60):
    """Record sentences; return (file, text, speaker) of each."""
    rng = np.random.default_rng(3)
    rows = []
    for index, text in enumerate(sentences(lexicon, number)):
        file = f"wav/{index:03d}.wav"
        phones = " ".join(lexicon[word] for word in text.split()).split()
        write_audio(folder / file, phones, rng)
        rows.append((file, text, f"s{index % 6}"))
    return rows


def lexicon_lines(lexicon):
    return "".join(f"{word} {phones}\n" for word, phones in lexicon.items())


def write_kaldi(data, rows):
    """Write a data directory of recorded sentences."""
    for name, column in (("wav.scp", 0), ("text", 1), ("utt2spk", 2)):
        lines = (f"{row[2]}-{row[0][4:7]} {row[column]}\n" for row in rows)
        (data / name).write_text("".join(sorted(lines)), encoding="utf-8")
