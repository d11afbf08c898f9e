"""Stages that all recipes share: those before acoustic training, and the results.

Corpus, manifests, data check, lexicon, language models, features; the table of results and the
run's page.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from glob import iglob
from itertools import chain
from pathlib import Path
from typing import Any

from lhotse import MonoCut

from local import fetch, manifests
from toolkit.corpus.check import check
from toolkit.corpus.findings import is_train
from toolkit.corpus.manifest import (
    audio_folders,
    iter_cuts,
    read_cuts,
    rewrite_texts,
    speaker_of,
    text_of,
    write_cuts,
)
from toolkit.corpus.split import Splits
from toolkit.features.augment import augmented
from toolkit.features.config import ExtractConfig, Scope
from toolkit.features.extract import extract
from toolkit.features.normalise import estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.features.speakers import name_speakers
from toolkit.kaldi.dict_lang import read_lexicon
from toolkit.kaldi.feature_dir import (
    KaldiFormat,
    feature_dimension,
    find_feature_faults,
    read_features,
)
from toolkit.lang.config import LangConfig, NgramConfig
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.lm import lm_word_counts, prepare_lm
from toolkit.lang.prepare import prepare_lang, source_dictionary, text_policy
from toolkit.lang.tables import UNKNOWN
from toolkit.lang.text_policy import AS_GIVEN, UPPER_CASE, TextCounts, TextPolicy
from toolkit.score.results import (
    collect_results,
    markdown_table,
    print_results,
    read_results,
    record_results,
)
from toolkit.stages.directory import RunDirectory
from toolkit.stages.run import Run
from toolkit.storage.files import link_or_copy, write_atomically
from toolkit.storage.lines import split_words
from toolkit.storage.paths import path_below, printable

logger = logging.getLogger(__name__)

RUN_PAGE = "report.html"


def get_corpus(run: Run) -> dict[str, float] | None:
    """Synthesise or download the corpus, unless `corpus.root` is set."""
    corpus, out = run.config.corpus, run.make("corpus")
    out.mkdir(exist_ok=True)
    if corpus.root:
        run.need(corpus.root, compare="existence")
        return None
    return fetch(corpus, out, run.jobs, run.progress)


def corpus_root(run: Run) -> Path:
    """Return the folder of the audio: the user's, or the output of the first stage."""
    root = run.setting("corpus.root")
    return run.need(root, compare="listing") if root else run.need("corpus")


def read_corpus(run: Run) -> dict[str, list[MonoCut]]:
    """Read the corpus by split; folders outside its root that hold its audio become inputs, too."""
    root = corpus_root(run)
    parts = manifests(run.config.corpus, root)
    for folder in audio_folders(chain.from_iterable(parts.values()), root):
        run.need(folder, compare="listing")
    return parts


def hybrid_policy(run: Run) -> TextPolicy:
    """Return the policy by which a hybrid recipe writes transcripts.

    If rules depend on the lexicon's words (tags as given, apostrophes at the edges of words,
    clitics), the lexicon file is an input of the stage.
    """
    # Read settings one by one, so that the stage does not depend on the rest of `lang`.
    policy = TextPolicy(run.setting("lang.normaliser"), run.setting("lang.tags"))
    if not policy.uses_lexicon or run.setting("lang.lexicon") == "graphemes":
        return policy
    path = run.setting("lang.lexicon")
    if path is not None:
        need_user_files(run, path)
        lexicon = read_lexicon(path, policy=policy).lexicon
    elif policy.id != AS_GIVEN:
        lexicon = Lexicon.from_cmudict()
    else:
        return policy
    splits = policy.id != AS_GIVEN and run.setting("lang.split_clitics")
    return replace(policy, lexicon=lexicon, split_clitics=splits)


def write_transcripts(
    parts: Mapping[str, Sequence[MonoCut]], policy: TextPolicy, noise_phone: bool
) -> None:
    """Write the transcripts of splits by a policy.

    With `noise_phone`, training transcripts have `<UNK>` where the policy asks for it; see
    `TextPolicy.transcript`. Reference transcripts never have it.
    """
    counts = TextCounts()
    transcript = partial(policy.transcript, counts=counts)
    without_noise = partial(_without_noise, transcript=transcript)
    for split, utterances in parts.items():
        keeps_noise = noise_phone and is_train(split)
        rewrite_texts(utterances, transcript if keeps_noise else without_noise, policy.found_tags)
    if phrases := list(counts.lines()):
        logger.info("transcripts: %s", "; ".join(phrases))


def _without_noise(text: str, transcript: Callable[[str], str]) -> str:
    """Return the transcript of a text, without words that are trained as the noise phone."""
    return " ".join(word for word in split_words(transcript(text)) if word != UNKNOWN)


def write_corpus(
    run: Run, policy: TextPolicy | None = None, noise_phone: bool = False
) -> dict[str, float]:
    """Write a manifest per split, with transcripts by a text policy, and the splits' roles.

    Without a policy, transcripts are taken as they are, in upper case. For `noise_phone` see
    `write_transcripts`. With corpus.speakers=auto, the recordings of a split are clustered, so that
    each utterance has a speaker from here on.
    """
    policy = policy or TextPolicy(UPPER_CASE)
    corpus, parts = run.config.corpus, read_corpus(run)
    data = run.make("data")
    write_transcripts(parts, policy, noise_phone)
    if corpus.speakers == "auto":
        for split, utterances in parts.items():
            recordings, speakers = name_speakers(utterances, run.jobs, read_features)
            logger.info(
                "%s: assigned %d recordings without speaker labels to %d speakers",
                split,
                recordings,
                speakers,
            )
    for split, split_cuts in parts.items():
        write_cuts(split_cuts, path_below(data, f"{split}.jsonl"))
    Splits.of(parts, corpus).save(data / "splits.json")
    return {split: len(split_cuts) for split, split_cuts in parts.items()}


def splits(run: Run) -> Splits:
    """Return the names and roles of the splits."""
    return Splits.load(run.need("data/splits.json"))


def cuts(run: Run, split: str) -> list[MonoCut]:
    """Return the cuts of a split, without those that the check excluded."""
    return read_cuts(run.need(f"data/{split}.jsonl"), run.need("check/excluded.tsv"))


def check_audio(run: Run, lexicon: Mapping[str, int], as_given: bool) -> dict[str, float]:
    """Check the audio or the features, and the transcripts, of all splits.

    Every audio file is decoded, or every feature matrix is read. The digests of the files later
    show which files have changed.

    Args:
      run: the run of the stage.
      lexicon: number of phones in the shortest pronunciation of each word.
      as_given: whether the text policy is as-given, so that words may have any character that
        occurs in the lexicon.
    """
    manifests = {split: run.need(f"data/{split}.jsonl") for split in splits(run).all}
    # With the policy as-given, words may have any character of the lexicon.
    out, config = run.make("check"), run.config.check
    if as_given:
        letters = set(config.alphabet).union(*lexicon)
        config = replace(config, alphabet="".join(sorted(letters)))
    # Without audio the matrices of features are checked instead.
    faults = None
    if has_kaldi_features(run):
        parts = {split: read_cuts(path) for split, path in manifests.items()}
        faults = find_feature_faults(parts, run.jobs, run.progress)
    headline = check(
        manifests, lexicon, out, config, run.jobs, run.progress, run.add_digest, faults
    )
    # Audio files are inputs by their digests: a replaced file makes the stage stale.
    for split in manifests:
        run.need_audio(f"data/{split}.jsonl")
    return headline


def texts(run: Run) -> dict[str, dict[str, str]]:
    """Return the transcripts of all splits, by split and utterance."""
    return {split: transcripts_of(run, split) for split in splits(run).all}


def transcripts_of(run: Run, split: str) -> dict[str, str]:
    """Return the transcripts of a split by utterance."""
    return {cut.id: text_of(cut) for cut in cuts(run, split)}


def need_user_files(run: Run, *sources: Path | None) -> None:
    """Record the user's files, folders and patterns as inputs of the stage.

    Missing ones are ignored here: the function that opens them raises the error.
    """
    for source in filter(None, sources):
        if source.exists():
            run.need(source)
        elif any(Path(path).is_file() for path in iglob(str(source), recursive=True)):
            run.need_matches(source)


def lm_config(run: Run, config: NgramConfig) -> NgramConfig:
    """Return a language model's settings with its text.

    The text is the one that `config` names, else that of `lm`, else that of the demo corpus.
    """
    if config.arpa is not None:
        need_user_files(run, config.arpa)
        return config
    return replace(config, text=_lm_text(run, config.text or run.setting("lm.text")))


def lm_sources(run: Run) -> NgramConfig:
    """Return only the source of the language model `lm`: its text or ARPA file.

    This is for stages that estimate no n-grams, and so do not depend on order, cutoffs and pruning.
    """
    return lm_config(run, NgramConfig(text=run.setting("lm.text"), arpa=run.setting("lm.arpa")))


def _lm_text(run: Run, text: Path | None) -> Path | None:
    """Record and return a language model's text; without one, the demo corpus's text, if any."""
    if text is not None:
        need_user_files(run, text)
        return text
    if run.exists("corpus/lm.txt"):
        return run.need("corpus/lm.txt")
    run.need("corpus")  # its next version may have such a text
    return None


def lattice_lm_config(run: Run) -> NgramConfig:
    """Return the settings of the denominator lattices' language model."""
    config = run.config.lattice_lm
    if run.config.lattice_text == "lm":
        return lm_config(run, config)
    need_user_files(run, config.text, config.arpa)
    return config


def has_kaldi_features(run: Run) -> bool:
    """Return whether the corpus has Kaldi features instead of audio."""
    return run.setting("corpus.features") == "kaldi"


def has_copies(run: Run) -> bool:
    """Return whether the networks also train on augmented copies of the training utterances."""
    return bool(run.setting("augment.speeds"))


def copies(run: Run) -> list[MonoCut]:
    """Return the augmented copies of the training utterances, for the networks."""
    config = run.config.augment
    need_user_files(run, config.noise, config.rooms)
    return list(augmented(cuts(run, "train"), config))


def training_speech(run: Run) -> dict[str, Any]:
    """Return the training speech's `hours`, `speakers` and `corpus` for the card of a bundle."""
    speech = cuts(run, splits(run).train)
    return {
        "hours": round(sum(cut.duration for cut in speech) / 3600, 2),
        "speakers": len({speaker_of(cut) for cut in speech}),
        "corpus": run.setting("corpus.name"),
    }


def list_results(
    run: Run,
    systems: Sequence[str],
    unknown_speaker: Mapping[tuple[str, str, str], float] | None = None,
) -> dict[str, float]:
    """Write the results of all systems; return the best WER of each split.

    Args:
      run: the run of the stage.
      systems: the folders below decode/.
      unknown_speaker: WER in percent with every utterance recognised alone, by (system, split,
        language model); it is added to that row.
    """
    rows = [run.need(f"decode/{system}/rows.json") for system in systems]
    results, table = run.make("results.json"), run.make("results.md")
    best = collect_results(rows, results)
    # Add the error rates with unknown speakers to the rows of the systems that have bundles.
    alone = unknown_speaker or {}
    record_results(
        results,
        [
            replace(row, wer_unknown_speaker=alone[row.key])
            for row in read_results(results)
            if row.key in alone
        ],
    )
    write_atomically(table, markdown_table(read_results(results)))
    return best


def show_results(directory: Path) -> None:
    """Print the table of results that the last stage has written, and write the run's page."""
    print_results(directory / "results.json")
    show_page(directory)


def lexicon_config(run: Run) -> LangConfig:
    """Return the settings of the lexicon for looking up words, without those of the vocabulary."""
    config = LangConfig(
        lexicon=run.setting("lang.lexicon"),
        normaliser=run.setting("lang.normaliser"),
        stress=run.setting("lang.stress"),
        strip_stress=run.setting("lang.strip_stress"),
    )
    need_user_files(run, config.lexicon_file)
    return config


def lang_config(run: Run) -> LangConfig:
    """Return the settings of lexicon and vocabulary."""
    need_user_files(run, run.config.lang.lexicon_file)
    return run.config.lang


def check_splits(run: Run) -> dict[str, float]:
    """Check all splits; utterances that cannot be used are excluded."""
    # The shortest pronunciation of each word gives the least duration of an utterance.
    manifests = [run.need(f"data/{split}.jsonl") for split in splits(run).all]
    words = {w for path in manifests for cut in iter_cuts(path) for w in split_words(text_of(cut))}
    config = lexicon_config(run)
    lexicon = source_dictionary(config, words, read_lexicon).lexicon.min_phone_counts()
    return check_audio(run, lexicon, config.normaliser == AS_GIVEN)


def prepare_language(run: Run) -> dict[str, float]:
    """Prepare lexicon and phones, for the words of transcripts, of LM text and of `lang.words`."""
    lang = lang_config(run)
    need_user_files(run, lang.words_file)
    dictionary = None if lang.lexicon == "graphemes" else source_dictionary(lang, read=read_lexicon)
    policy = text_policy(lang, dictionary.lexicon if dictionary else ())
    text = lm_word_counts(lm_sources(run), policy)
    headline = prepare_lang(lang, texts(run), text, run.make("lang"), dictionary=dictionary)
    if "left_out" in headline:
        logger.info(
            "the language model's text contains %s different words that are not in the vocabulary; "
            "they are %.1f %% of its running words",
            f"{headline['left_out']:,}",
            100 * headline["left_out_share"],
        )
    return headline


def train_language_models(run: Run) -> dict[str, float]:
    """Estimate the small language model of the graphs and the larger one that rescores.

    The weights with which text and transcripts are mixed are chosen on the tuning splits.
    """
    lang = Lang.load(run.need("lang"))
    larger, small = lm_config(run, run.config.rescoring), lm_config(run, run.config.lm)
    options = {"tune": splits(run).tune, "policy": lang.policy}
    prepare_lm(larger, texts(run), lang.vocabulary, run.make("rescoring"), **options)
    return prepare_lm(small, texts(run), lang.vocabulary, run.make("lm"), **options)


def extract_splits(run: Run, config: ExtractConfig, out: Path, also_copies: bool) -> dict:
    """Extract the features of every split and of the copies, if any; return the hours by split."""
    hours = {}
    for split in splits(run).all:
        hours[split] = extract_utterances(run, cuts(run, split), config, out, split)
    if also_copies and has_copies(run):
        hours["copies"] = extract_utterances(run, copies(run), config, out, "copies", "train")
    return hours


def extract_utterances(
    run: Run,
    utterances: Iterable[MonoCut],
    config: ExtractConfig,
    out: Path,
    name: str,
    split: str | None = None,
) -> float:
    """Extract features; earlier shards with unchanged utterances and audio are reused.

    Args:
      run: the run of the stage.
      utterances: what to extract features of.
      config: front end and size of shards.
      out: the output folder, as returned by `run.make`.
      name: the folder in `out`.
      split: the split whose manifest names the utterances' audio; None: `name`.

    Returns:
      Hours of audio.
    """
    audio, folder = run.need_audio(f"data/{split or name}.jsonl"), out / name
    previous_out = run.previous(out)
    previous = previous_out / name if previous_out else None
    changed = {"audio": audio, "previous": previous, "device": run.device}
    return extract(utterances, config, folder, run.jobs, **changed)["hours"]


def extract_fbank(run: Run, out: Path) -> dict[str, float]:
    """Extract the networks' features of all splits and copies, and estimate their normaliser."""
    hours = extract_splits(run, run.config.fbank, out, also_copies=True)
    write_normaliser(run, out)
    return {f"hours {split}": duration for split, duration in hours.items()}


def import_kaldi_features(run: Run, plp: Path, fbank: Path) -> dict[str, float]:
    """Copy the features of a Kaldi corpus for the GMMs and the networks, with links where possible.

    Args:
      run: the run of the stage.
      plp: the folder for the GMMs' features, as returned by `run.make`.
      fbank: likewise, for the networks' features.

    Returns:
      Hours of speech by split, and the number of values per frame.
    """
    shards = ExtractConfig(
        hours_per_shard=run.setting("fbank.hours_per_shard"),
        max_failed_share=run.setting("fbank.max_failed_share"),
    )
    previous = run.previous(plp)
    form = KaldiFormat(feature_dimension(cuts(run, splits(run).train)[0]))
    headline: dict[str, float] = {}
    for split in splits(run).all:
        headline[f"hours {split}"] = extract(
            cuts(run, split),
            shards,
            plp / split,
            run.jobs,
            audio=run.need_audio(f"data/{split}.jsonl"),
            previous=previous / split if previous else None,
            imported=form,
        )["hours"]
        # GMMs and networks use the same features; the normaliser is for the networks only.
        shutil.rmtree(fbank / split, ignore_errors=True)
        shutil.copytree(plp / split, fbank / split, copy_function=link_or_copy)
    write_normaliser(run, fbank)
    return headline | {"dimension": form.dimension}


def training_features(run: Run, name: str) -> Path:
    """Return a folder of features; the stage depends only on the parts for training.

    These are the training split, its augmented copies and the normaliser.

    Args:
      run: the run of the stage.
      name: the folder, such as `fbank`.
    """
    if has_copies(run):
        run.need(f"{name}/copies")
    run.need(f"{name}/normaliser.json")
    return run.need(f"{name}/train").parent


def decoded_features(run: Run, name: str) -> Path:
    """Return a folder of features; the stage depends only on the decoded splits and the normaliser.

    Args:
      run: the run of the stage.
      name: the folder, such as `fbank`.
    """
    for split in splits(run).decoded:
        run.need(f"{name}/{split}")
    return run.need(f"{name}/normaliser.json").parent


def transcripts(utterances: Iterable[MonoCut], features: Path) -> dict[str, list[str]]:
    """Return the words of the utterances that have features, in the given order.

    Utterances whose features could not be extracted are left out; the extraction has logged them.
    """
    store = FeatureStore(features)
    return {cut.id: split_words(text_of(cut)) for cut in utterances if cut.id in store}


def write_normaliser(run: Run, features: Path, scope: Scope | None = None) -> None:
    """Estimate the normaliser of a folder of features on its training split.

    Args:
      run: the run of the stage.
      features: the folder.
      scope: what a frame is normalised with; None: the setting `normalisation`.
    """
    store, config = FeatureStore(features / "train"), run.config
    normaliser = estimate_normaliser(store, config.prior_frames, scope or config.normalisation)
    normaliser.save(features / "normaliser.json")


def show_page(directory: Path) -> None:
    """Write the report of a run, and print its address.

    A page that is newer than every stage and the results is kept. If the page cannot be drawn, the
    run does not fail: a message gives the reason and the command to try again.
    """
    path = directory / RUN_PAGE
    try:
        if _outdated(directory, path):
            from toolkit.report.run_page import write_report

            write_report(directory, path)
        print(f"Report: {path.resolve().as_uri()}")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        print(printable(f"No report was written: {reason}. Try `toolkit report {directory}`."))


def _outdated(directory: Path, path: Path) -> bool:
    """Return whether a page is older than a marker or the results."""
    if not path.is_file():
        return True
    sources = [*RunDirectory(directory).stages.glob("[0-9][0-9].json"), directory / "results.json"]
    return any(
        source.stat().st_mtime_ns > path.stat().st_mtime_ns for source in sources if source.exists()
    )
