import os
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from toolkit.errors import ToolkitError
from toolkit.stages import marker
from toolkit.stages.declaration import Stage
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Attempt, CodeVersion, Progress, Provenance
from toolkit.stages.plan import Planner
from toolkit.stages.run import (
    DeclarationError,
    MissingInputError,
    Run,
    StageOutputs,
    plain_headline,
)


@dataclass(frozen=True)
class Corpus:
    root: Path = Path("/no/such/corpus")


@dataclass(frozen=True)
class Lm:
    text: Path | None = None
    order: int = 3
    prune: float = 0.0


@dataclass(frozen=True)
class Config:
    corpus: Corpus = field(default_factory=Corpus)
    lm: Lm = field(default_factory=Lm)
    seed: int = 3
    jobs: int = 4

    @property
    def doubled(self):
        return 2 * self.seed

    def scaled(self, factor):
        return factor * self.jobs


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "exp").mkdir()
    return RunDirectory(tmp_path / "exp")


def run_of(directory, device=None, number=4, further=(), **settings):
    other_stages = [
        StageOutputs(1, "Prepare", ("data",)),
        StageOutputs(2, "Lexicon", ()),
        StageOutputs(6, "Decode", ("results.json",)),
        *further,
    ]
    stages = [Stage(outputs.number, outputs.title, print) for outputs in other_stages]
    planner = Planner(directory, stages, Config(**settings))
    return Run(number, planner, Provenance(), other_stages, device, 2, "run.py")


def changes(directory, provenance, **settings):
    """Return why a provenance no longer holds, with current digests."""
    return Planner(directory, [], Config(**settings)).changes(provenance)


def test_only_the_fields_that_are_read_become_parameters(directory):
    run = run_of(directory)
    assert run.config.corpus.root == Path("/no/such/corpus")
    assert run.provenance.parameters == {"corpus": {"root": "/no/such/corpus"}}


def test_methods_and_properties_record_the_fields_they_read(directory):
    run = run_of(directory)
    assert run.config.doubled == 6
    assert run.provenance.parameters == {"seed": 3}
    assert run.config.scaled(2) == 8
    assert run.provenance.parameters == {"seed": 3, "jobs": 4}
    with pytest.raises(AttributeError):
        _ = run.config.sede


def test_only_the_read_setting_of_a_section_is_recorded(directory):
    run = run_of(directory)
    assert run.setting("lm.order") == 3
    assert run.provenance.parameters == {"lm.order": 3}
    assert changes(directory, run.provenance, lm=Lm(prune=1e-7)) == []
    assert changes(directory, run.provenance, lm=Lm(order=2)) == ["`lm.order` 3 -> 2"]
    run.provenance.parameters["lm.cutoff"] = 1  # of a version that had it
    assert changes(directory, run.provenance) == ["`lm.cutoff` is no longer a parameter"]


def test_a_file_is_called_after_the_setting_that_was_read_alone(directory, tmp_path):
    text = tmp_path / "books.txt"
    text.write_text("a b c")
    run = run_of(directory, lm=Lm(text=text))
    run.setting("lm.order")
    run.need(text, compare="listing")
    assert set(run.provenance.inputs) == {str(text)}
    run = run_of(directory, lm=Lm(text=text))
    run.need(run.setting("lm.text"), compare="listing")
    assert set(run.provenance.inputs) == {"{lm.text}"}
    moved = text.rename(tmp_path / "moved.txt")
    assert changes(directory, run.provenance, lm=Lm(text=moved)) == []


def test_inputs_are_recorded_by_content(directory):
    (directory.root / "data").mkdir()
    (directory.root / "data" / "a").write_text("1")
    run = run_of(directory)
    assert run.need("data/") == directory.root / "data"
    assert run.need(directory.root / "data" / "a") == directory.root / "data" / "a"
    assert set(run.provenance.inputs) == {"data", "data/a"}
    assert run.provenance.inputs["data"].files.keys() == {"a"}
    run = run_of(directory)
    run.need("data", compare="listing")
    assert run.provenance.inputs["data"].kind == "listing"


def test_inputs_from_outside_are_recorded_by_listing_or_content(directory, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a").write_text("1")
    run = run_of(directory)
    assert run.need(tmp_path / "corpus", compare="listing") == tmp_path / "corpus"
    assert run.need(tmp_path / "corpus" / "a", compare="listing") == tmp_path / "corpus" / "a"
    (tmp_path / "place").mkdir()
    run.need(tmp_path / "place", compare="existence")
    kinds = {name: content.kind for name, content in run.provenance.inputs.items()}
    assert kinds == {
        str(tmp_path / "corpus"): "listing",
        str(tmp_path / "corpus" / "a"): "content",
        str(tmp_path / "place"): "existence",
    }
    (tmp_path / "place" / "a").touch()
    assert changes(directory, run.provenance) == []
    (tmp_path / "place" / "a").unlink()
    (tmp_path / "place").rmdir()
    assert changes(directory, run.provenance) == [f"input `{tmp_path / 'place'}` is missing"]


def test_a_folder_with_other_contents_is_another_input(directory, tmp_path):
    sound = tmp_path / "noise" / "a.wav"
    sound.parent.mkdir()
    digests = []
    for content in b"one", b"two", b"one":
        sound.write_bytes(content)
        os.utime(sound, (1e9, 1e9))
        run = run_of(directory)
        run.need(sound.parent)
        run.need(tmp_path, compare="listing")
        digests.append([content.digest for content in run.provenance.inputs.values()])
    assert digests[0] == digests[2]
    assert digests[0][0] != digests[1][0]
    assert digests[0][1] == digests[1][1]  # by its listing it is the same


def test_a_pattern_is_another_input_when_a_file_appears_changes_or_vanishes(directory, tmp_path):
    texts, pattern = tmp_path / "texts", tmp_path / "texts/*.txt"
    with pytest.raises(MissingInputError, match=r"texts/\*\.txt` does not exist"):
        run_of(directory).need_matches(pattern)
    (texts / "folder.txt").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "c.csv"):
        (texts / name).write_text(name)
    run = run_of(directory)
    run.need_matches(pattern)
    assert list(run.provenance.inputs[str(pattern)].files) == ["a.txt", "b.txt"]
    reasons = Planner(directory, [], Config()).changes
    assert reasons(run.provenance) == []
    (texts / "c.csv").write_text("no match")
    assert reasons(run.provenance) == []
    (texts / "d.txt").touch()
    assert reasons(run.provenance) == [f"input `{texts}/d.txt` is new"]
    (texts / "d.txt").unlink()
    (texts / "a.txt").write_text("edited")
    assert reasons(run.provenance) == [f"input `{texts}/a.txt` changed"]
    (texts / "a.txt").unlink()
    assert reasons(run.provenance) == [f"input `{texts}/a.txt` is missing"]
    (texts / "b.txt").unlink()
    assert reasons(run.provenance) == [f"input `{texts}` is missing"]


def test_a_missing_input_names_its_stage_or_those_that_are_not_done(directory):
    run = run_of(directory)
    with pytest.raises(MissingInputError, match=r"made by stage 1 \(Prepare\).*--stage 1"):
        run.need("data/train.json")
    with pytest.raises(
        MissingInputError,
        match=r"`lang` is missing; not done yet: stage 1 \(Prepare\), 2 \(Lexicon\)",
    ):
        run.need("lang")


def test_the_first_of_many_unfinished_stages_are_named(directory):
    further = [StageOutputs(number, "Step", ()) for number in (7, 8)]
    with pytest.raises(MissingInputError, match=r"6 \(Decode\) and 2 more\. Run .*--stage 1"):
        run_of(directory, number=9, further=further).need("lang")


def test_a_missing_corpus_names_the_key_that_says_where_it_is(directory):
    with pytest.raises(MissingInputError, match=r"--set corpus\.root=PATH"):
        run_of(directory).need("/no/such/corpus", compare="listing")
    with pytest.raises(MissingInputError, match=r"`/no/other` does not exist$"):
        run_of(directory).need("/no/other", compare="listing")
    with pytest.raises(MissingInputError, match=r"`/dev/zero` is not a regular file$"):
        run_of(directory).need("/dev/zero", compare="listing")


@pytest.mark.parametrize(
    "name", ["/abs", "../up", "a/../../b", ".", "", "stages/x", ".partial", "log.txt"]
)
def test_outputs_lie_in_the_run_directory_and_not_among_the_runners_files(directory, name):
    with pytest.raises(DeclarationError, match="cannot be the name of an output"):
        run_of(directory).make(name)


def test_declarations_that_contradict_are_refused(directory):
    for name in ("data", "results.json", "mine"):
        (directory.root / name).write_text("")
    run = run_of(directory)
    with pytest.raises(DeclarationError, match="which stage 6 makes later"):
        run.need("results.json")
    with pytest.raises(DeclarationError, match=r"and 1 both make .* --force 1"):
        run.make("data/more")
    run.need("mine")
    with pytest.raises(DeclarationError, match="which it also needs"):
        run.make("mine")
    run.make("model")
    with pytest.raises(DeclarationError, match="which it makes itself"):
        run.need("model/final.txt")
    with pytest.raises(DeclarationError, match="overlaps another"):
        run.make("model/final.txt")


def test_the_place_of_an_output_is_stable_and_its_provenance_precedes_it(directory):
    run = run_of(directory)
    _ = run.config.seed
    assert Provenance.read(directory.provenance(4)) is None
    place = run.make("ali/train")
    assert place == run.make("ali/train") == directory.root / ".partial" / "04" / "ali" / "train"
    assert place.parent.is_dir()
    assert not place.exists()
    assert Provenance.read(directory.provenance(4)).parameters == {"seed": 3}
    _ = run.config.jobs
    assert Provenance.read(directory.provenance(4)).parameters == {"seed": 3, "jobs": 4}
    (directory.root / "late").write_text("1")
    run.need("late")
    assert Provenance.read(directory.provenance(4)).inputs.keys() == {"late"}


def test_progress_is_written_at_once_and_then_seldom(directory):
    run = run_of(directory)
    run.progress(1, 10)
    run.progress(2, 10)
    progress = Progress.read(directory.progress(4))
    assert (progress.done, progress.total) == (1, 10)
    assert 0 <= progress.seconds < 60


def test_the_device_is_a_gpu_when_there_is_one(directory, monkeypatch):
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert run_of(directory).device == "cpu"
    with pytest.raises(ToolkitError, match="--device cuda:1: torch finds no GPU"):
        _ = run_of(directory, "cuda:1").device
    torch.cuda.is_available = lambda: True
    assert run_of(directory).device == "cuda"
    assert run_of(directory, "cuda:1").device == "cuda:1"
    assert run_of(directory, "cpu").device == "cpu"


def test_headline_numbers_become_python_numbers():
    headline = plain_headline({"wer": np.float32(8.5), "words": 3, "note": "x"})
    assert headline == {"wer": 8.5, "words": 3, "note": "x"}
    assert type(headline["wer"]) is float
    assert plain_headline(None) == {}


def test_the_numeric_environment_is_recorded_once_torch_is_loaded(directory, monkeypatch):
    numeric = {"blas": None}
    monkeypatch.setattr(marker, "numeric_environment", lambda: dict(numeric))
    run = run_of(directory)
    run.provenance.attempts.append(Attempt("now", CodeVersion(None, False, "", {}), {"blas": None}))
    run.make("model")
    numeric["blas"] = "MKL"
    assert Provenance.read(directory.provenance(4)).attempts[0].numeric == {"blas": None}
    run.progress(1, 2)
    assert Provenance.read(directory.provenance(4)).attempts[0].numeric == {"blas": "MKL"}


def test_other_ranks_have_the_same_paths_and_record_nothing(directory, tmp_path):
    run = Run(4, Planner(directory, [], Config()), None, [], None, 2, "run.py")
    run.need_matches(tmp_path / "*.txt")
    assert run.need_audio("data/train.jsonl") == {}
    with pytest.raises(MissingInputError, match="`lang` is missing on worker 0's host"):
        run.need("lang")
    (directory.root / "lang").mkdir()
    assert run.need("lang") == run_of(directory).need("lang")
    assert run.need(tmp_path, compare="listing") == tmp_path
    assert run.make("model") == directory.partial(4, "model")
    assert run.previous(run.make("model")) is None
    assert (run.config.seed, run.setting("lm.order")) == (3, 3)
    run.progress(1, 2)
    assert not [path for path in directory.root.rglob("*") if path.is_file()]
