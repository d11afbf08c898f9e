"""A recipe of four small stages; the third is long and resumes inside."""

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.stages.recipe import Recipe
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class CorpusConfig:
    root: Path = Path("corpus")


@dataclass(frozen=True)
class LangConfig:
    upper: bool = False
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainConfig:
    epochs: int = 4
    rate: float = 0.5

    def __post_init__(self):
        if self.epochs < 1:
            raise ValueError("at least one epoch is needed")


@dataclass(frozen=True)
class Config:
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    lang: LangConfig = field(default_factory=LangConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


def demo():
    return Config()


def long():
    return Config(train=TrainConfig(epochs=40))


recipe = Recipe("sample", Path(__file__), {"demo": demo, "long": long}, "Four small stages.")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def misbehave(stage, when):
    """Do what a test asks for in the environment, e.g. FAULT="3:middle:value"."""
    fault = os.environ.get("FAULT", "")
    if fault.startswith(f"{stage}:{when}:"):
        kind = fault.split(":")[2]
        if kind == "value":
            raise ValueError("the loss is not a number")
        if kind == "memory":
            raise MemoryError
        if kind == "toolkit":
            raise ToolkitError("utterance a-1 is broken; see `toolkit doctor`")
        if kind == "sleep":
            print("sleeping", flush=True)
            time.sleep(60)
        if kind == "program":  # as lmplz, or git
            with subprocess.Popen(["sleep", "60"]) as program:
                print(program.pid, flush=True)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exit":
            raise SystemExit(0)
        if kind == "callback":  # called by C code, which ignores exceptions
            ctypes.CFUNCTYPE(None)(terminate)()


@recipe.stage(1, "Prepare the corpus")
def prepare(run):
    root = run.need(run.config.corpus.root, compare="listing")
    data = run.make("data")
    data.mkdir(exist_ok=True)
    texts = {path.stem: path.read_text() for path in sorted(root.glob("*.txt"))}
    for split, names in (("train", list(texts)), ("test", list(texts)[:1])):
        (data / f"{split}.json").write_text(json.dumps({name: texts[name] for name in names}))
    misbehave(1, "end")
    return {"utterances": len(texts)}


@recipe.stage(2, "Build the lexicon")
def lexicon(run):
    data = run.need("data/train.json")
    words = sorted(set(" ".join(json.loads(data.read_text()).values()).split()))
    config = run.config.lang
    words = [*words, *config.extra]
    if config.upper:
        words = [word.upper() for word in words]
    lang = run.make("lang/phones").parent
    run.make("words.txt").write_text("\n".join(words))
    phones = lang / "phones"
    phones.mkdir(exist_ok=True)
    (phones / "phones.txt").write_text(" ".join(sorted(set("".join(words)))))
    (phones / "count").write_text(str(len(words)))


@recipe.stage(3, "Train the model")
def train(run):
    words = run.need("words.txt").read_text()
    run.need("lang/phones")
    config = run.config.train
    model = run.make("model")
    state = words
    for epoch in range(config.epochs):
        checkpoint = model / f"{epoch}.json"
        if not checkpoint.exists():
            previous = (model / f"{epoch - 1}.json").read_text() if epoch else words
            digest = hashlib.sha256(f"{previous} {config.rate}".encode()).hexdigest()
            write_atomically(checkpoint, digest)
            time.sleep(float(os.environ.get("EPOCH_SECONDS", 0)))
        state = checkpoint.read_text()
        run.progress(epoch + 1, config.epochs)
        if epoch == config.epochs // 2:
            misbehave(3, "middle")
    write_atomically(model / "final.txt", state)
    return {"loss": 0.125}


@recipe.stage(5, "Decode the test split")
def decode(run):
    model = run.need("model/final.txt").read_text()
    data = run.need("data/test.json").read_text()
    text = json.dumps([hashlib.sha256((model + data).encode()).hexdigest()])
    run.make("results.json").write_text(text)
    return {"wer": 8.25, "words": 12}


if __name__ == "__main__":
    recipe.main()
