"""The command line of the hybrid recipe on a finished run."""

import json

import pytest

from tests.recipes.conftest import copy_run
from tests.recipes.librispeech_run import SPEAKERS, STAGES, systems, table_of
from toolkit.storage.paths import overlap

pytest.importorskip("soundfile")

pytestmark = pytest.mark.long

DECODES = (8, 10, 12, 14, 17, 19, 22, 24, 26, 28, 30, 31)
"""The stages that decode, and those that compile the networks' graphs."""
TRAININGS = (7, 9, 11, 13, 15, 16, 18, 20, 21, 23, 25, 27, 29, 32)
"""The stages that train, align, or make what a network is trained on."""


def states(listing):
    """Return {number: state} from `--list`, with the reason on the line below."""
    table = listing.output[listing.output.index("stage ") :].splitlines()
    column, end, states, number = table[0].index("state"), table[0].index("time"), {}, 0
    for line in table[1:]:
        if line[0].isdigit():
            number = int(line.split()[0])
            states[number] = line[column:end].strip()
        elif line.split()[0].rstrip(":") == states[number]:
            states[number] = line.strip()
    return states


def test_a_second_run_skips_every_stage_and_changes_no_byte(finished, commands):
    contents = finished.content()
    # Typed in another folder, with a path as seen from there.
    arguments = (*commands.demo, "--jobs", 1, "--exp", "exp")
    again = commands.run(*arguments, cwd=finished.root.parent)
    assert again.status == 0, again.errors
    assert again.stages("--") == STAGES
    assert again.stages("==") == []
    assert table_of(finished.rows, again.output, "--")
    assert finished.content() == contents


def test_the_list_shows_state_time_and_result_of_every_stage(finished, commands):
    contents = finished.content()
    listing = commands.run(*commands.demo, "--exp", finished.root, "--list")
    assert listing.status == 0
    assert states(listing) == dict.fromkeys(STAGES, "done")
    lines = listing.output.splitlines()
    (trained,) = (line for line in lines if "Train monophone GMMs" in line)
    assert trained.startswith("7 ")
    assert trained.endswith(" s")
    wer = next(r["wer"] for r in finished.rows if (r["system"], r["lm"]) == ("lstm_ce", "4gram"))
    (decoded,) = (i for i, line in enumerate(lines) if line.startswith("19 "))
    assert f"wer dev {wer:.4g}" in lines[decoded + 1]
    assert finished.content() == contents


def test_a_dry_run_prints_the_plan_and_changes_nothing(finished, commands):
    contents = finished.content()
    arguments = (*commands.demo, "--exp", finished.root, "--dry-run")
    lines = commands.run(*arguments).output.splitlines()
    assert len(lines) == len(STAGES)
    assert all(line.endswith(": would skip: done") for line in lines)
    lines = commands.run(*arguments, "--force", 35, "--stage", 31).output.splitlines()
    assert [line.rpartition(": would ")[2] for line in lines] == [
        *["skip: done"] * 4,
        "run: forced",
    ]
    assert finished.content() == contents


def test_force_reruns_one_stage(finished, commands, copy):
    again = commands.run(*commands.demo, "--exp", copy.root, "--force", 35)
    assert again.status == 0, again.errors
    assert again.stages("==") == [35]
    assert again.stages("--") == STAGES[:-1]
    assert copy.rows == finished.rows
    assert copy.results() == finished.results()


def test_a_changed_setting_makes_the_stages_stale_that_depend_on_it(quick, commands, tmp_path):
    """No other stage becomes stale; the listing, the dry run and the run agree."""
    copy = copy_run(quick, tmp_path / "exp")
    settings = ("ce.epochs=3", "detect_speech=false")  # the second: stage 35 is then shorter
    changed = [word for setting in settings for word in ("--set", setting)]
    changed = (*commands.quick, *changed, "--exp", copy.root)
    depends = [*range(18, 25), 33, 34, 35]
    # On the features that stages 23 and 24 make again, which stay as they were.
    perhaps = {27: "stage 23 ", 28: "stage 27 ", 29: "stage 27 "}
    perhaps |= {30: "stage 27, 28, 29 ", 31: "stage 23, 24, 27, 28 "}
    unaffected = [number for number in STAGES if number not in (*depends, *perhaps)]
    listed = states(commands.run(*changed, "--list"))
    assert {number: listed[number] for number in unaffected} == dict.fromkeys(unaffected, "done")
    assert all(listed[n].startswith(f"done (will run if {source}") for n, source in perhaps.items())
    assert listed[18] == "stale: `ce.epochs` 2 -> 3"
    assert "stage 18" in listed[19]
    assert "18, 20" in listed[21]

    plan_lines = commands.run(*changed, "--dry-run").output.splitlines()
    plans = {
        int(line.split()[0]): line.partition(": would ")[2]
        for line in plan_lines
        if ": would " in line
    }
    assert {n for n, plan in plans.items() if plan.startswith("run")} == {*depends, *perhaps}
    assert plans[18] == "run: `ce.epochs` 2 -> 3"

    again = commands.run(*changed)
    assert again.status == 0, again.errors
    assert sorted(again.stages("==")) == depends  # the LSTM's beside the TDNN-F's
    assert "stale: `ce.epochs` 2 -> 3" in again.output
    quick_files, copy_files = quick.results()[1], copy.results()[1]
    assert copy_files["lstm_ce/model.safetensors"] != quick_files["lstm_ce/model.safetensors"]
    assert copy.rows[:8] == quick.rows[:8]


@pytest.mark.parametrize(
    ("setting", "depends"),
    [
        ("tri.tree.max_leaves=99", [*range(9, 32), 33, 34, 35]),
        ("sat.fmllr=2", [*range(13, 32), 33, 34, 35]),
        ("gmm_decode.penalties=-1", [8, 10, 12, 14, 24, 31, 33, 34, 35]),
        ("senones.max_leaves=50", [*range(16, 32), 33, 34, 35]),
        ("align.rounds=1", [*range(18, 32), 33, 34, 35]),
        ("lattice_lm.order=1", [20, 21, 22, 33, 34, 35]),
        ("blstm.epochs=3", [25, 26, 33, 34, 35]),
        ("lstm_lm.epochs=2", [32, 34, 35]),
        # No lexicon, features, alignment or training depends on the n-grams.
        ("lm.order=2", [5, *DECODES, 33, 34, 35]),
        ("rescoring.order=5", [5, *DECODES, 33, 34, 35]),
        # Stage 24 makes features of the TDNN-F too, which stay as they were.
        ("decode.beam.search=9", [19, 22, 24, 26, 31, 33, 34, 35]),
        ("chain_decode.scales=1", [30, 31, 33, 34, 35]),
        ("bidirectional=false", [33, 34, 35]),
        ("chain=false", [33, 34, 35]),
        ("lstm=false", [33, 34, 35]),
    ],
)
def test_a_changed_setting_makes_only_dependent_stages_stale(finished, commands, setting, depends):
    listing = commands.run(*commands.demo, "--set", setting, "--exp", finished.root, "--list")
    listed = states(listing)
    assert [number for number in STAGES if listed[number] != "done"] == depends
    assert listed[depends[0]].startswith(f"stale: `{setting.split('=')[0]}` ")


@pytest.mark.parametrize("number", TRAININGS)
def test_trainings_read_nothing_of_decoded_splits_and_ngrams(finished, number):
    """Other test data, n-grams or search weights retrain nothing."""
    marker = json.loads((finished.root / f"stages/{number:02d}.json").read_text())
    stores = ("plp", "fbank", "fmllr_features", "lda_mllt_features")
    unrelated = [f"{store}/{split}" for store in stores for split in SPEAKERS]
    unrelated += ["lm", "rescoring", "graph.safetensors", "chain_graph.safetensors", "decode"]
    unrelated += ["fmllr", "corpus/test", "data/splits.json", "data/dev.jsonl", "data/test.jsonl"]
    read = {(name, path) for name in marker["inputs"] for path in unrelated if overlap(name, path)}
    assert read == set()
    settings = {key for key in marker["parameters"] if key.partition(".")[0] == "lm"}
    assert settings <= {"lm.text", "lm.arpa"}


def test_networks_on_the_features_of_gmms_can_be_switched_off(finished, commands, copy):
    """As in most profiles. Their outputs stay until they are on again; the cepstra of copies, which
    nothing else reads, do not."""
    settings = ("adapted=false", "bidirectional=false", "chain=false", "detect_speech=false")
    off = [word for setting in settings for word in ("--set", setting)]
    again = commands.run(*commands.demo, *off, "--exp", copy.root)
    assert again.status == 0, again.errors
    assert again.stages("==") == [6, 33, 34, 35]
    assert (finished.root / "plp/copies").exists()
    assert not (copy.root / "plp/copies").exists()
    for name in ("fmllr_features", "lstm_fmllr", "lda_mllt_features", "blstm", "chain"):
        assert (copy.root / name).exists()
    gone = ("lstm_fmllr", "blstm", "chain", "chain_fbank", "combined")

    expected = [row for row in finished.rows if row["system"] not in gone]
    rescored_systems = {row["system"] for row in expected if row["lm"] == "4gram+lstm"}
    rescored_systems &= {row["system"] for row in copy.rows if row["lm"] == "4gram+lstm"}

    def unaffected(rows):  # which systems are rescored and bundled may have changed
        timed = ("rtf", "command")
        return [
            {
                k: v
                for k, v in row.items()
                if k != "wer_unknown_speaker" and (row["lm"] != "4gram+lstm" or k not in timed)
            }
            for row in rows
            if row["system"] in rescored_systems or row["lm"] != "4gram+lstm"
        ]

    assert unaffected(copy.rows[:-2]) == unaffected(expected)
    assert [row["system"] for row in copy.rows[-2:]] == ["combined"] * 2
    chosen = json.loads((copy.root / "decode/combined/tuned.json").read_text())
    assert chosen["weights"].keys() == {"sat", "lstm_smbr"}


def test_gmms_without_networks_make_a_bundle(finished, commands, copy):
    settings = ("lstm=false", "adapted=false", "bidirectional=false", "chain=false")
    settings += ("detect_speech=false",)
    off = [word for setting in settings for word in ("--set", setting)]
    again = commands.run(*commands.demo, *off, "--exp", copy.root)
    assert again.status == 0, again.errors
    for name in ("lstm_ce", "lstm_smbr", "denominators", "decode/lstm_smbr"):
        assert (copy.root / name).exists()
    assert (finished.root / "decode/combined").exists()
    assert not (copy.root / "decode/combined").exists()
    gmms = ["mono", "tri", "lda_mllt", "sat"]
    assert list(dict.fromkeys(row["system"] for row in copy.rows)) == gmms
    assert copy.rows[-1]["lm"] == "4gram+lstm"
    listing = commands.run(*commands.demo, *off, "--exp", copy.root, "--list")
    assert listing.output.count("does nothing: lstm is off") == 5
    assert "does nothing: bidirectional is off" in listing.output
    (bundled,) = systems(copy.root)
    assert bundled["name"] in gmms
    assert not bundled["streams"]
