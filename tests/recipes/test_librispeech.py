"""The hybrid recipe from audio to `%WER` and the bundle, and everything its command line does."""

import json
import random
import shlex
import shutil
import signal

import jiwer
import pytest

soundfile = pytest.importorskip("soundfile")

FIELDS = ["system", "split", "lm", "wer", "cer", "ins", "del", "sub", "ref_words", "rtf", "command"]
FIELDS += ["wer_low", "wer_high"]
STAGES = [*range(1, 32)]
GMMS = ("mono", "tri", "lda_mllt", "sat")
NETWORKS = ("lstm_ce", "lstm_smbr", "lstm_fmllr", "blstm", "chain")
SPEAKERS = {"dev": 6, "test": 4}


@pytest.fixture(scope="module")
def transcripts(finished):
    """By split, read from the corpus itself."""
    found = {}
    for split in SPEAKERS:
        paths = sorted((finished.root / "corpus" / split).rglob("*.trans.txt"))
        lines = [line for path in paths for line in path.read_text().splitlines()]
        found[split] = dict(line.split(" ", 1) for line in lines)
    return found


@pytest.fixture
def copy(finished, tmp_path):
    """The run directory once more, for a test that changes it."""
    root = tmp_path / "exp"
    shutil.copytree(finished.root, root)
    return type(finished)(root, finished.result, finished.seconds)


def states(listing):
    """{number: state} from `--list`, with the reason, which stands on a line of its own."""
    table = listing.output[listing.output.index("stage ") :].splitlines()
    column, end, found, number = table[0].index("state"), table[0].index("time"), {}, 0
    for line in table[1:]:
        if line[0].isdigit():
            number = int(line.split()[0])
            found[number] = line[column:end].strip()
        elif line.split()[0].rstrip(":") == found[number]:
            found[number] = line.strip()
    return found


def errors_on_dev(finished):
    """By system and language model."""
    return {
        (row["system"], row["lm"]): row["ins"] + row["del"] + row["sub"]
        for row in finished.rows
        if row["split"] == "dev"
    }


def neural(finished):
    """SAT and the best network, which the LSTM language model rescores."""
    errors = errors_on_dev(finished)
    return ["sat", min(NETWORKS, key=lambda name: errors[name, "4gram"])]


def test_results_hold_a_row_for_each_system_and_split(finished, commands):
    assert [(row["system"], row["split"], row["lm"]) for row in finished.rows] == [
        (system, split, lm)
        for systems, lms in (
            (GMMS[:3], ["3gram"]),
            (("sat", *NETWORKS), ["3gram", "4gram"]),
            (neural(finished), ["4gram+lstm"]),
            (["combined"], ["4gram"]),
        )
        for system in systems
        for lm in lms
        for split in SPEAKERS
    ]
    for row in finished.rows:
        assert list(row) == FIELDS
        errors = row["ins"] + row["del"] + row["sub"]
        assert row["wer"] == pytest.approx(100 * errors / row["ref_words"], abs=0.005)
        assert row["wer_low"] <= row["wer"] <= row["wer_high"]
        assert 0 <= row["cer"] < 100
        assert 0 < row["rtf"] < 10
        program, *arguments = shlex.split(row["command"])
        assert program.endswith("recipes/librispeech/run.py")
        assert arguments == [*commands.demo, "--jobs", "1", "--exp", str(finished.root)]


@pytest.mark.parametrize(
    ("system", "dev", "test"),
    [
        ("mono", 15, 35),  # measured: 3 and 13 %
        ("tri", 20, 30),  # 6 and 8
        ("lda_mllt", 20, 60),  # 4 and 36
        ("sat", 10, 30),  # 0 and 8
        ("lstm_ce", 50, 95),  # 23 and 79
        ("lstm_smbr", 50, 95),
        ("lstm_fmllr", 20, 50),
        ("blstm", 20, 60),  # 2 and 32
        ("chain", 10, 30),  # 2 and 3
        ("combined", 10, 30),
    ],
)
def test_word_error_rates_are_those_of_a_recogniser(finished, system, dev, test):
    """One that guesses has 100; five minutes of three speakers make none that is robust."""
    found = {row["split"]: row["wer"] for row in finished.rows if row["system"] == system}
    assert found["dev"] < dev
    assert found["test"] < test


def test_adaptation_helps(finished):
    """The test speakers are not those of the training data."""
    wer = {row["system"]: row["wer"] for row in finished.rows if row["split"] == "test"}
    assert wer["sat"] < wer["lda_mllt"] - 5  # measured: 36 and 8 %


def test_word_error_rates_are_jiwers_on_the_corpus_own_transcripts(finished, transcripts):
    for row in finished.rows:
        references = transcripts[row["split"]]
        words = finished.words(row["system"], row["split"], row["lm"])
        assert sorted(words) == sorted(references)
        measured = jiwer.wer([references[u] for u in words], list(words.values()))
        assert row["wer"] == pytest.approx(100 * measured, abs=0.005)
        assert row["ref_words"] == sum(len(text.split()) for text in references.values())


def test_recognised_words_have_times_and_confidences(finished):
    for split in SPEAKERS:
        found = dict.fromkeys(finished.words("lstm_smbr", split), "")
        ends = dict.fromkeys(found, 0.0)
        folder = finished.root / "decode" / "lstm_smbr" / split
        for line in (folder / "words.ctm").read_text().splitlines():
            utterance, _, start, duration, word, confidence = line.split()
            assert float(start) >= ends[utterance] - 1e-6
            ends[utterance] = float(start) + float(duration)
            assert 0 <= float(confidence) <= 1
            found[utterance] = f"{found[utterance]} {word}".strip()
        assert found == finished.words("lstm_smbr", split)
        lines = [line.split("\t") for line in (folder / "nbest.tsv").read_text().splitlines()]
        best = {utterance: words for utterance, rank, *_, words in lines[1:] if rank == "1"}
        assert dict.fromkeys(found, "") | best == found


def test_the_adapted_gmms_and_the_combination_have_times_and_lattices(finished, transcripts):
    from toolkit.decode.lattice_export import oracle_texts

    for system in ("sat", "lstm_fmllr", "blstm", "combined"):
        for split in SPEAKERS:
            folder = finished.root / "decode" / system / split
            found = dict.fromkeys(finished.words(system, split), "")
            for line in (folder / "words.ctm").read_text().splitlines():
                utterance, _, _, _, word, _ = line.split()
                found[utterance] = f"{found[utterance]} {word}".strip()
            assert found == finished.words(system, split)
    for row in finished.rows:
        if row["lm"] == "4gram":
            folder = finished.root / "decode" / row["system"] / row["split"]
            references = transcripts[row["split"]]
            if (folder / "word_lattices").exists():
                texts, _, _ = oracle_texts(folder, references)
                said = list(texts.values())
                assert jiwer.wer([references[u] for u in texts], said) <= row["wer"] / 100 + 1e-9


def test_the_decoding_benchmark_finds_what_it_needs(finished):
    from toolkit.bench.decode import DecodingInputs

    material = DecodingInputs.of_run(finished.root)
    assert material.graph.exists()
    assert len(material.scores) == len(material.references) > 1


def table_of(rows, output, mark):
    """What a command has printed of its last stage, with the table of results."""
    table = output[output.index(f"{mark} 31 ") :]
    for row in rows:
        named = {row["system"], row["split"], row["lm"]}
        line = next(line for line in table.splitlines() if named <= {*line.split()})
        assert f"{row['wer']:.2f}" in line
    return table


def test_the_table_of_results_is_printed_at_the_end(finished):
    assert ".partial" not in table_of(finished.rows, finished.result.output, "==")


def test_every_stage_leaves_a_marker_and_nothing_half_done(finished):
    markers = {path.stem: path for path in finished.root.glob("stages/[0-9]*")}
    assert sorted(markers) == [f"{number:02d}" for number in STAGES]
    for path in markers.values():
        marker = json.loads(path.read_text())
        assert marker["outputs"]
        assert all((finished.root / name).exists() for name in marker["outputs"])
        assert marker["versions"]["search"] == "native"
        assert marker["seconds"] >= 0
    assert not [path for path in (finished.root / ".partial").rglob("*") if path.is_file()]


def test_a_second_run_skips_every_stage_and_changes_no_byte(finished, commands):
    before = finished.content()
    # Typed in another folder, with a path as seen from there.
    arguments = (*commands.demo, "--jobs", 1, "--exp", "exp")
    again = commands.run(*arguments, cwd=finished.root.parent)
    assert again.status == 0, again.errors
    assert again.stages("--") == STAGES
    assert again.stages("==") == []
    assert table_of(finished.rows, again.output, "--")
    assert finished.content() == before


def test_the_list_shows_state_time_and_result_of_every_stage(finished, commands):
    before = finished.content()
    listing = commands.run(*commands.demo, "--exp", finished.root, "--list")
    assert listing.status == 0
    assert states(listing) == dict.fromkeys(STAGES, "done")
    lines = listing.output.splitlines()
    (trained,) = (line for line in lines if "Train monophone GMMs" in line)
    assert trained.startswith("7 ")
    assert trained.endswith(" s")
    wer = next(r["wer"] for r in finished.rows if (r["system"], r["lm"]) == ("lstm_ce", "4gram"))
    (decoded,) = (i for i, line in enumerate(lines) if line.startswith("18 "))
    assert f"wer dev {wer:.4g}" in lines[decoded + 1]
    assert finished.content() == before


def test_a_dry_run_says_what_would_happen_and_changes_nothing(finished, commands):
    before = finished.content()
    arguments = (*commands.demo, "--exp", finished.root, "--dry-run")
    lines = commands.run(*arguments).output.splitlines()
    assert len(lines) == len(STAGES)
    assert all(line.endswith(": would skip: done") for line in lines)
    lines = commands.run(*arguments, "--force", 31, "--stage", 27).output.splitlines()
    assert [line.rpartition(": would ")[2] for line in lines] == [
        *["skip: done"] * 4,
        "run: forced",
    ]
    assert finished.content() == before


def test_force_makes_one_stage_again(finished, commands, copy):
    again = commands.run(*commands.demo, "--exp", copy.root, "--force", 31)
    assert again.status == 0, again.errors
    assert again.stages("==") == [31]
    assert again.stages("--") == STAGES[:-1]
    assert copy.rows == finished.rows
    assert copy.results() == finished.results()


def test_a_changed_setting_makes_the_stages_stale_that_depend_on_it(finished, commands, copy):
    """And only these: the listing, the dry run and the run agree."""
    changed = (*commands.demo, "--set", "ce.epochs=3", "--exp", copy.root)
    depends = [*range(17, 24), 28, 30, 31]
    perhaps = [26, 27]  # on the features that stage 22 makes again, which stay as they were
    rest = [number for number in STAGES if number not in (*depends, *perhaps)]
    shown = states(commands.run(*changed, "--list"))
    assert {number: shown[number] for number in rest} == dict.fromkeys(rest, "done")
    assert all(shown[number].startswith("done (will run if stage 22") for number in perhaps)
    assert shown[17] == "stale: `ce.epochs` 20 -> 3"
    assert "stage 17" in shown[18]
    assert "17, 19" in shown[20]

    plan = commands.run(*changed, "--dry-run").output.splitlines()
    would = {
        int(line.split()[0]): line.partition(": would ")[2] for line in plan if ": would " in line
    }
    assert {n for n, what in would.items() if what.startswith("run")} == {*depends, *perhaps}
    assert would[17] == "run: `ce.epochs` 20 -> 3"

    again = commands.run(*changed)
    assert again.status == 0, again.errors
    assert again.stages("==") == depends
    assert "stale: `ce.epochs` 20 -> 3" in again.output
    assert copy.words("lstm_ce", "dev") != finished.words("lstm_ce", "dev")
    assert copy.rows[:8] == finished.rows[:8]


@pytest.mark.parametrize(
    ("setting", "depends"),
    [
        ("tri.tree.max_leaves=99", [*range(9, 29), 30, 31]),
        ("sat.fmllr=2", [*range(13, 29), 30, 31]),
        ("gmm_decode.penalties=-1", [8, 10, 12, 14, 22, 23, 26, 27, 28, 30, 31]),
        ("senones.max_leaves=50", [*range(16, 29), 30, 31]),
        ("blstm.epochs=3", [24, 25, 28, 30, 31]),
        ("bidirectional=false", [24, 25, 28, 30, 31]),
        ("chain=false", [26, 27, 28, 30, 31]),
    ],
)
def test_what_a_changed_setting_of_the_gmms_makes_stale(finished, commands, setting, depends):
    listing = commands.run(*commands.demo, "--set", setting, "--exp", finished.root, "--list")
    shown = states(listing)
    assert [number for number in STAGES if shown[number] != "done"] == depends
    assert shown[depends[0]].startswith(f"stale: `{setting.split('=')[0]}` ")


def test_networks_on_the_features_of_gmms_can_be_switched_off(finished, commands, copy):
    """As most profiles have it; the cepstra of copies, which nothing else reads, go with them."""
    settings = ("adapted=false", "bidirectional=false", "chain=false")
    off = [word for setting in settings for word in ("--set", setting)]
    again = commands.run(*commands.demo, *off, "--exp", copy.root)
    assert again.status == 0, again.errors
    assert again.stages("==") == [6, *range(22, 29), 30, 31]
    for name in ("adapted", "lstm_fmllr", "independent", "blstm", "chain", "plp/copies"):
        assert (finished.root / name).exists()
        assert not (copy.root / name).exists()
    gone = ("lstm_fmllr", "blstm", "chain", "combined")

    def unaffected(rows):  # which network is the best one may have changed, and SAT is timed again
        timed = ("rtf", "command")
        return [
            {k: v for k, v in row.items() if row["lm"] != "4gram+lstm" or k not in timed}
            for row in rows
            if row["system"] == "sat" or row["lm"] != "4gram+lstm"
        ]

    kept = [row for row in finished.rows if row["system"] not in gone]
    assert unaffected(copy.rows[:-2]) == unaffected(kept)
    assert [row["system"] for row in copy.rows[-2:]] == ["combined"] * 2
    chosen = json.loads((copy.root / "decode/combined/tuned.json").read_text())
    assert chosen["weights"].keys() == {"sat", "lstm_smbr"}


@pytest.mark.timeout(1200)
def test_killed_again_and_again_it_ends_with_the_same_results(finished, commands, tmp_path):
    """kill -9 at random moments, then the same with more jobs: nothing is lost, nothing differs."""
    root = tmp_path / "exp"
    arguments = (*commands.demo, "--exp", root, "--jobs")
    soon = random.Random(20)
    moments = {
        "stages/02.json": soon.uniform(0, 2),
        ".partial/07/mono/checkpoint.safetensors": 0,
        ".partial/09/tri/checkpoint.safetensors": 0,
        # While the transforms of the first system are made ready, and again a little later.
        ".partial/11/lda_mllt/ali.0004.safetensors": 0,
        ".partial/11/lda_mllt/checkpoint.safetensors": 0,
        ".partial/13/sat/checkpoint.safetensors": 0,
        "stages/14.json": soon.uniform(0, 2),
        ".partial/17/lstm_ce/checkpoints/epoch-*": 0,
        ".partial/19/denominators/train/lattices/lattices.*": 0,
        ".partial/20/lstm_smbr/checkpoints/epoch-*": 0,
        # Whose features were written before, and are not written again.
        ".partial/24/blstm/checkpoints/epoch-*": 0,
        ".partial/26/chain/checkpoints/epoch-*": 0,
    }
    kills, done = 0, set()
    for number, (pattern, delay) in enumerate(moments.items()):
        result = commands.kill(root, pattern, delay, *arguments, 2 + number % 2)
        assert result.status in (0, -signal.SIGKILL), result.errors
        assert not done & {*result.stages("==")}, "what was done is done again"
        found = {int(path.stem) for path in root.glob("stages/[0-9][0-9].json")}
        assert done <= found
        done = found
        kills += result.status == -signal.SIGKILL
    assert kills >= 8
    last = commands.run(*arguments, 2)
    assert last.status == 0, last.errors
    rows, files = type(finished)(root, last, 0.0).results()
    expected = finished.results()
    assert rows == expected[0]
    made = {f"{system}/gmm.safetensors" for system in (*GMMS, "final/aligner")}
    made |= {f"final/{streaming(finished)['name']}/model/model.safetensors"}
    made |= {"decode/lstm_ce/test/text", "senones/tree.json"}
    assert made <= files.keys()
    assert files.keys() == expected[1].keys()
    assert [name for name in files if files[name] != expected[1][name]] == []
    assert not [path for path in (root / ".partial").rglob("*") if path.is_file()]


def systems(root):
    """What the bundle says of its systems, the best first."""
    return json.loads((root / "final/systems.json").read_text())


def streaming(finished):
    return next(system for system in systems(finished.root) if system["streams"])


def test_the_bundle_is_the_best_on_the_development_data(finished):
    errors = errors_on_dev(finished)
    del errors["combined", "4gram"]
    best, *others = systems(finished.root)
    assert (best["name"], best["lm"]) == min(errors, key=errors.get)
    rows = [r for r in finished.rows if (r["system"], r["lm"]) == (best["name"], best["lm"])]
    assert best["wer"] == {row["split"]: row["wer"] for row in rows}
    networks = {key: count for key, count in errors.items() if key[0] in ("lstm_ce", "lstm_smbr")}
    stream = streaming(finished)
    assert (stream["name"], stream["lm"]) == min(networks, key=networks.get)
    assert len(others) == (best != stream)


def firsts(finished, split):
    """The first utterance of each speaker: the network starts every file as the decoder does it."""
    return sorted((finished.root / "corpus" / split).glob("*/1001/*-0000.flac"))


@pytest.mark.parametrize("system", [None, "sat", "sat_lstm_lm", "blstm", "lstm_fmllr", "chain"])
def test_a_bundle_finds_the_words_of_the_decoder_for_each_speaker(
    finished, commands, tmp_path, request, system
):
    run, lm = finished, None
    if system is not None:
        run = request.getfixturevalue("copy")
        if system == "sat_lstm_lm":  # which need not be the best of so little training
            rows = run.root / "decode" / system / "rows.json"
            zero = dict.fromkeys(("ins", "del", "sub"), 0)
            rows.write_text(json.dumps([row | zero for row in json.loads(rows.read_text())]))
            system = "sat"
            lm = "4gram+lstm"
        settings = ("--stage", 31, "--set", f"bundle={system}", "--exp", run.root)
        made = commands.run(*commands.demo, *settings)
        assert made.status == 0, made.output + made.errors
    best = systems(run.root)[0]
    assert system in (None, best["name"])
    assert lm in (None, best["lm"])
    files = sorted((run.root / "corpus/dev").glob("*/*/*.flac"))
    speakers = tmp_path / "utt2spk"
    speakers.write_text("".join(f"{f.stem} {f.parent.parent.name}\n" for f in files))
    mixed = files[::2] + files[1::2]  # a speaker's recordings need not follow each other
    if best["streams"]:
        mixed = files  # the running mean of a speaker goes by the order of time
    arguments = ("--model", run.root / "final", "--speakers", speakers, *mixed)
    result = commands.toolkit("transcribe", *arguments)
    assert result.status == 0, result.errors
    assert result.errors.startswith(f"{best['name']} with {best['lm']}: WER {best['wer']['dev']}")
    lines = dict(line.partition(" ")[::2] for line in result.output.splitlines())
    assert [*lines] == [path.stem for path in mixed]
    expected = run.words(best["name"], "dev", best["lm"])
    assert lines == {path.stem: expected[path.stem] for path in files}


def test_the_bundle_transcribes_files_of_any_form_and_names_broken_ones(
    finished, commands, tmp_path
):
    flacs = firsts(finished, "dev")
    samples, rate = soundfile.read(flacs[0], dtype="int16")
    names = ("stereo.wav", "8k.wav", "broken.flac", "missing.wav", "click.wav")
    stereo, slow, broken, missing, click = (tmp_path / name for name in names)
    soundfile.write(click, samples[:20], rate)
    soundfile.write(stereo, samples[:, None].repeat(2, axis=1), rate)
    soundfile.write(slow, samples[::2, None].repeat(2, axis=1), rate // 2)
    broken.write_bytes(flacs[0].read_bytes()[:100])
    files = [*flacs, broken, stereo, missing, click, slow]
    system = streaming(finished)
    bundle = ("--model", finished.root / "final", "--system", system["name"])
    result = commands.toolkit("transcribe", *bundle, *files)

    assert result.status == 1
    found = dict(line.partition(" ")[::2] for line in result.output.splitlines())
    assert list(found) == [path.stem for path in (*flacs, stereo, slow)]
    expected = finished.words(system["name"], "dev", system["lm"])
    assert len(flacs) == SPEAKERS["dev"]
    assert {path.stem: found[path.stem] for path in flacs} == {
        path.stem: expected[path.stem] for path in flacs
    }
    assert found[stereo.stem] == expected[flacs[0].stem]
    vocabulary = (finished.root / "lang" / "words.txt").read_text().split()
    assert found[slow.stem]
    assert {*found[slow.stem].split()} <= {*vocabulary}
    _, *told = result.errors.splitlines()
    for path, line in zip((broken, missing, click), told, strict=True):
        assert line.startswith(f"Error: {path}: ")


def test_the_bundle_gives_word_times_and_the_same_words_piece_by_piece(finished, commands):
    audio, system = firsts(finished, "dev")[0], streaming(finished)
    bundle = ("--model", finished.root / "final")
    settings = ("--system", system["name"], "--format", "json")
    whole = commands.toolkit("transcribe", *bundle, *settings, audio)
    assert whole.status == 0, whole.errors
    (segment,) = json.loads(whole.output)["segments"]
    words = segment["words"]
    assert " ".join(word["word"] for word in words) == segment["text"]
    assert segment["text"] == finished.words(system["name"], "dev", system["lm"])[audio.stem]
    last = 0.0
    for word in words:
        assert last - 1e-6 <= word["start"] < word["end"] <= soundfile.info(audio).duration + 0.03
        assert 0 <= word["confidence"] <= 1
        last = word["end"]
    settings = ("--stream", "--endpoint", "30", "--format", "json")
    stream = commands.toolkit("transcribe", *bundle, *settings, audio)
    assert stream.status == 0, stream.errors
    *changes, final = [json.loads(line) for line in stream.output.splitlines()]
    assert len(changes) > 1
    assert not any(change["final"] for change in changes)
    assert final["final"]
    assert final["text"] == segment["text"]


def test_the_fast_bundle_finds_the_words_of_the_first_pass(finished, commands):
    system, audio = streaming(finished), firsts(finished, "test")
    settings = ("--system", system["name"], "--fast")
    result = commands.toolkit("transcribe", "--model", finished.root / "final", *settings, *audio)
    assert result.status == 0, result.errors
    expected = finished.words(system["name"], "test", "3gram")
    assert result.output.splitlines() == [f"{path.stem} {expected[path.stem]}" for path in audio]


def test_the_bundle_needs_nothing_of_the_run(finished, commands, tmp_path):
    bundle = tmp_path / "elsewhere"
    shutil.copytree(finished.root / "final", bundle)
    audio = shutil.copy(firsts(finished, "test")[0], tmp_path / "a.flac")
    before = commands.toolkit("transcribe", "--model", finished.root / "final", audio)
    away = finished.root.rename(finished.root.with_name("away"))
    try:
        result = commands.toolkit("transcribe", "--model", "elsewhere", "a.flac", cwd=tmp_path)
    finally:
        away.rename(finished.root)
    assert (before.status, result.status) == (0, 0), before.errors + result.errors
    words = before.output.partition(" ")[2]
    assert words.split()
    assert result.output == f"a {words}"


def test_the_bundle_aligns_to_where_the_words_were_put(finished, commands, tmp_path):
    """Against the synthesiser's own word times."""
    dev = finished.root / "corpus" / "dev"
    files = {"text": sorted(dev.rglob("*.trans.txt")), "true.ctm": sorted(dev.rglob("words.ctm"))}
    for name, parts in files.items():
        (tmp_path / name).write_text("".join(path.read_text() for path in parts))
    settings = ("--audio-dir", dev, "--text", tmp_path / "text", "--out", tmp_path / "out")
    result = commands.toolkit("align", "--model", finished.root / "final", *settings)
    assert result.status == 0, result.errors

    def starts(path):
        rows = [line.split() for line in path.read_text().splitlines()]
        return sorted((row[0], float(row[2]), row[4]) for row in rows)

    found, true = starts(tmp_path / "out" / "words.ctm"), starts(tmp_path / "true.ctm")
    assert [(u, word) for u, _, word in found] == [(u, word) for u, _, word in true]
    errors = sorted(abs(a - b) for (_, a, _), (_, b, _) in zip(found, true, strict=True))
    assert errors[len(errors) // 2] <= 0.025  # measured: 8 ms
    assert errors[len(errors) * 95 // 100] <= 0.1  # measured: 40 ms
