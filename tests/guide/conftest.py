"""Made-up corpora in the guides' forms, spoken by voices that the demo does not have."""

import csv
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy.signal import resample_poly

from toolkit.kernels import VARIABLE, kernels_digest

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
GREEK = {"eleni": "el+f2", "fotis": "el+m3"}
PROTASEIS = (
    "Χθες το βράδυ, ο γιατρός τραγούδησε.",
    "Η δασκάλα βρήκε το κλειδί!",
    "Ο αδελφός μου έχασε ένα βιβλίο;",
    "Την Κυριακή πίνουμε καφέ.",
    "Το μαΐστρο φυσάει στη θάλασσα.",
    "Σήμερα δεν βρέχει.",
    "Η κουζίνα είναι κλειστή.",
)
PROJECT = Path(__file__).resolve().parents[2]


def make_project(root):
    """Copy what a recipe needs into a project of its own, with this environment."""
    ignored = shutil.ignore_patterns("exp", "__pycache__")
    for part in ("toolkit", "local", "recipes"):
        shutil.copytree(PROJECT / part, root / part, ignore=ignored)
    copy_kernels(PROJECT / "toolkit", root / "toolkit")
    (root / ".venv").symlink_to(sys.prefix)
    return root


def copy_kernels(package, copied):
    """Give a copy of the package its compiled kernels too, which numba names by their place."""
    cache = Path("__pycache__") / f"kernels-{kernels_digest(package)}"
    for folder in {path.parent.relative_to(package) for path in package.rglob("*.py")}:
        source, destination = (cache / named_by_numba(root / folder) for root in (package, copied))
        if (package / source).is_dir():
            shutil.copytree(package / source, copied / destination)


def named_by_numba(folder):
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"


def environment():
    """That of a user's shell: kernels are kept where a project's own package says."""
    return {k: v for k, v in os.environ.items() if k != VARIABLE} | {"OMP_NUM_THREADS": "1"}


def blocks(page):
    """Return the commands of a page that are to be run: (section, block)."""
    section_blocks = []
    for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        title = section.partition("\n")[0]
        section_blocks += [
            (title, b) for b in re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S)
        ]
    return section_blocks


def typed(block, project):
    """Run a block of commands in a project; return what they print."""
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        cwd=project,
        env={**environment(), "PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}"
    return done.stdout


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
        self._sentences("de", "deutsch.csv", GERMAN, SAETZE)

    def greek(self):
        """Write greek.csv and its audio."""
        self._sentences("el", "greek.csv", GREEK, PROTASEIS)

    def german_lexicon(self):
        """Write a lexicon in lower case of most of the words, a text and a list of words."""
        from toolkit.lang.text_policy import text_rules

        words = sorted(set(text_rules("letters-upper-1").words(" ".join(SAETZE))))
        lines = [f"{word.lower()} {' '.join(word.lower())}\n" for word in words if word != "KÜCHE"]
        (self.folder / "german.dict").write_text("".join(lines), encoding="utf-8")
        text = "".join(f"{text}\n" for text in (*SAETZE, "Die Äpfel sind in der Straßenbahn."))
        (self.folder / "german.txt").write_text(text, encoding="utf-8")
        (self.folder / "german.words").write_text("Brückentür\n", encoding="utf-8")

    def _sentences(self, folder, table, voices, texts):
        pairs = itertools.product(voices, enumerate(texts))
        rows = [
            (f"{folder}/{speaker}/{number}.wav", text, speaker) for speaker, (number, text) in pairs
        ]
        for file, text, speaker in rows:
            self.say(file, text, voices[speaker])
        self.table(table, rows)


@pytest.fixture(scope="session")
def speech():
    pytest.importorskip("espeakng_loader")
    return Speech
