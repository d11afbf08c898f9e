"""A made-up corpus in each of the guide's forms, spoken by voices that the demo does not have."""

import csv
import itertools

import numpy as np
import pytest
import soundfile
from scipy.signal import resample_poly

ENGLISH = {"ann": "en+f1", "ben": "en-gb-scotland+m1", "cleo": "en+f5"}
SENTENCE = (
    ("Yesterday,", "This evening,", "On Sunday,"),
    ("my brother", "our teacher", "the doctor", "a sailor"),
    ("found the garden key.", "lost a book.", "painted the kitchen!", "sold his horse?", "sang."),
)
GERMAN = {"dora": "de+f2", "emil": "de+m3"}
SAETZE = (
    "Die Großmutter öffnet die Tür.",
    "Am Abend trinken wir Tee!",
    "Öfter fährt er über die Brücke, nicht?",
    "Fünf Äpfel kosten einen Euro.",
    "Das Fenster in der Küche ist zu.",
    "Heute regnet es nicht.",
    "Die Straße führt zum Fluß.",
)


class Speech:
    """Writes the folder `speech` of the guide."""

    def __init__(self, folder) -> None:
        self.folder, self.rng = folder, np.random.default_rng(5)

    def say(self, file, text, voice):
        """Speak a sentence in some noise, with some silence around it."""
        from local.synthetic.espeak import Voice, speak

        spoken = speak(text, Voice(voice)).samples / 32768
        samples = np.pad(resample_poly(spoken, 320, 441), 3000)
        samples += 0.003 * self.rng.standard_normal(len(samples))
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, samples, 16000, subtype="PCM_16")
        path.with_suffix(".txt").write_text(text + "\n")

    def table(self, name, rows):
        with open(self.folder / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("audio", "text", "speaker"), *rows])

    def english(self, utterances):
        """Write table.csv, the wav folder, and data/ in Kaldi's form."""
        pieces = [list(itertools.product(*SENTENCE))[n * 7 % 60] for n in range(utterances)]
        speakers = itertools.cycle(ENGLISH)
        rows = [
            (f"wav/{speaker}/{number:04d}.wav", " ".join(words), speaker)
            for number, (words, speaker) in enumerate(zip(pieces, speakers, strict=False))
        ]
        for file, text, speaker in rows:
            self.say(file, text, ENGLISH[speaker])
        self.table("table.csv", rows)
        data = self.folder / "data"
        data.mkdir()
        ids = [f"{number}" for number in range(utterances)]  # not sorted, no speaker in front
        tables = {
            "wav.scp": [file for file, _, _ in rows],
            "text": [text for _, text, _ in rows],
            "utt2spk": [speaker for _, _, speaker in rows],
        }
        for name, values in tables.items():
            lines = (f"{id} {value}\n" for id, value in zip(ids, values, strict=True))
            (data / name).write_text("".join(lines))

    def german(self):
        """Write deutsch.csv and its audio."""
        pairs = itertools.product(GERMAN, enumerate(SAETZE))
        rows = [(f"de/{speaker}/{number}.wav", text, speaker) for speaker, (number, text) in pairs]
        for file, text, speaker in rows:
            self.say(file, text, GERMAN[speaker])
        self.table("deutsch.csv", rows)


@pytest.fixture(scope="session")
def speech():
    pytest.importorskip("espeakng_loader")
    return Speech
