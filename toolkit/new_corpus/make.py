"""Makes the recipe of a new corpus from existing data, or a recipe for the user to fill in."""

import keyword
import os
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

from lhotse import MonoCut

import toolkit
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.cut_files import cut_files, read_cut_file
from toolkit.corpus.manifest import ManifestError, has_audio, text_of
from toolkit.corpus.pairing import NOT_UTF8
from toolkit.corpus.table import read_part, read_table, tables_in
from toolkit.corpus.wav_scp import PipeRunner
from toolkit.errors import ToolkitError
from toolkit.kaldi.data_dir import read_kaldi_dir, read_scp
from toolkit.kaldi.dict_lang import read_lexicon
from toolkit.kaldi.feature_dir import feature_dimension, read_feature_dir
from toolkit.lang.language import Coverage, choose_policy, show_letters, survey_language
from toolkit.lang.prepare import check_sentences, read_sentences
from toolkit.lang.text_policy import (
    AS_GIVEN,
    EXAMPLES,
    EnglishLexiconRules,
    LetterLexiconRules,
    TextCounts,
    TextPolicy,
    split_clitics,
)
from toolkit.new_corpus.survey import choose_parts, summary_lines, survey, warning_lines
from toolkit.new_corpus.templates import READER, README, Settings, config_py, run_py
from toolkit.storage.files import write_atomically
from toolkit.storage.lines import too_many

MARKER_FILES = ("local/__init__.py", "recipes/librispeech/run.py", "toolkit/stages/recipe.py")
"""Files that identify a checkout of the project."""


class CheckoutError(ToolkitError):
    """Raised when a command that needs a checkout of the project is called outside of one."""


class CorpusNameError(ToolkitError):
    """Raised for a name that a new corpus cannot have."""


def find_checkout(start: Path) -> Path:
    """Return the root of the checkout that contains `start`, or else of the one with this package.

    Raises:
      CheckoutError: there is neither, for instance because the toolkit was installed from a wheel.
    """
    start = start.absolute()
    for folder in (start, *start.parents, Path(toolkit.__file__).absolute().parents[1]):
        if all((folder / part).is_file() for part in MARKER_FILES):
            return folder
    raise CheckoutError(
        f"{start} is not in a checkout of the project. A new corpus becomes a recipe in a "
        "checkout, because the installed package has no recipes/ and local/. Clone the project's "
        "repository, run `make setup` in it, and run the command there: .venv/bin/toolkit "
        "new-corpus ..."
    )


def check_name(name: str, root: Path) -> None:
    """Check the name of a new corpus in the checkout `root`.

    Raises:
      CorpusNameError: the name is not a lower-case Python identifier, or is already used.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        # Suggest a name: letters without accents, other characters as underscores.
        ascii_name = unicodedata.normalize("NFKD", name.lower().replace("ß", "ss"))
        ascii_name = "".join(c for c in ascii_name if not unicodedata.combining(c))
        hint = re.sub(r"[^a-z0-9]+", "_", ascii_name).strip("_")
        hint = f"c_{hint}" if hint[:1].isdigit() or keyword.iskeyword(hint) else hint
        example = f", such as {hint!r}" if hint else ""
        raise CorpusNameError(
            f"{name!r} cannot be the name of a corpus, because it becomes the name of a Python "
            f"module: use lower-case letters, digits and _{example}"
        )
    # The name of a reader (local/) and of a recipe (recipes/), each a module or a package
    paths = [root / part / file for part in ("local", "recipes") for file in (f"{name}.py", name)]
    existing = ", ".join(str(path.relative_to(root)) for path in paths if path.exists())
    if existing:
        raise CorpusNameError(
            f"the name {name!r} is taken ({existing}), and existing files are not overwritten: "
            "choose another name, or delete these files"
        )


def write_recipe(root: Path, name: str, settings: Settings, about: str) -> list[Path]:
    """Write recipes/`name`, completely or not at all; return its files.

    Args:
      root: root of the checkout.
      name: name of the corpus, which `check_name` accepts.
      settings: the content of config.py.
      about: a description of the corpus in Markdown, for README.md.
    """
    files = {
        "config.py": config_py(name, settings),
        "run.py": run_py(name),
        "README.md": README.format(name=name, about=about),
    }
    # Write a folder beside the target and rename it, so that the recipe appears with all its files.
    # A killed run may have left an unfinished folder.
    folder = root / "recipes" / name
    unfinished = folder.with_name(f".{name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    for file, text in files.items():
        write_atomically(unfinished / file, text)
    (unfinished / "run.py").chmod(0o755)
    unfinished.rename(folder)
    return [folder / file for file in files]


def write_reader(root: Path, name: str) -> Path:
    """Write local/`name`.py, with a function for the user to fill in; return its path."""
    path = root / "local" / f"{name}.py"
    write_atomically(path, READER.format(name=name))
    return path


ALIGN_LEXICON = "phones/align_lexicon.txt"
"""File of a lang directory that holds its lexicon."""
KALDI_TABLES = ("wav.scp", "feats.scp")
"""Tables of audio and of features; a data directory has at least one of them."""
DICTIONARIES = ("local/dict", "dict", "local/dict_nosp")
"""Dictionary directories of Kaldi's recipes, in or beside their data directories."""


@dataclass(frozen=True)
class NewCorpus:
    """The files of a new corpus, and remarks for the user."""

    written: tuple[Path, ...]
    """The files, in the order in which the user should read them."""
    remarks: tuple[str, ...] = ()
    """Lines about the data and the choices made from them."""


def create_reader_stub(
    root: Path, name: str, lexicon: str | None = None, lm_text: Path | None = None
) -> NewCorpus:
    """Write a recipe, and a reader for the user to fill in, into the checkout `root`.

    Args:
      root: root of the checkout.
      name: name of the corpus; see `check_name`.
      lexicon: "cmudict" (the default), "graphemes" or a file.
      lm_text: text for a language model, which is interpolated with that of the training
        transcripts; None: only the transcripts.
    """
    lexicon = lexicon or "cmudict"
    settings = Settings(lexicon=lexicon, normaliser=_rules_for(lexicon), lm_text=lm_text)
    reader = write_reader(root, name)
    return NewCorpus((reader, *write_recipe(root, name, settings, f"Read by local/{name}.py.")))


def create_recipe(
    root: Path,
    name: str,
    data: Path,
    reader: str,
    lexicon: str | None = None,
    lm_text: Path | None = None,
    pipes: Path | None = None,
    map_paths: tuple[str, ...] = (),
    speakers: Literal["recording", "auto"] = "recording",
) -> NewCorpus:
    """Write, into the checkout, the recipe of a corpus that an existing reader can read.

    Args:
      root: root of the checkout.
      name: name of the corpus; see `check_name`.
      data: a table; a Kaldi data directory, or a folder of them; a file of cuts, or a folder of
        them. If Kaldi data directories have no audio, their features (feats.scp) are used.
      reader: "table", "kaldi" or "cuts".
      lexicon: see `create_reader_stub`; by default the lexicon that suits the transcripts.
      lm_text: as in `create_reader_stub`.
      pipes: folder that keeps the output of the commands in a Kaldi wav.scp, which are then run;
        None: they are not run.
      map_paths: mappings `OLD=NEW` of audio paths, see `CorpusConfig`.
      speakers: how speakers are found if the data do not name them, see `CorpusConfig`.

    Raises:
      ManifestError, LanguageError: the corpus cannot be used as it is.
      LexiconError: the file is not a lexicon.
      TextError: the language model's text cannot be read.
    """
    # 1. Read the parts of the corpus that the recipe will use.
    data = data.absolute()
    corpus = CorpusConfig(reader, data, map_paths=map_paths, speakers=speakers)
    about_features = []
    if pipes is not None:
        corpus = replace(corpus, allow_pipes=True, pipes=pipes.absolute())
    elif reader == "kaldi" and _lacks_audio(data, map_paths):
        corpus = replace(corpus, features="kaldi")
    read = {"table": _tables, "kaldi": _kaldi_parts, "cuts": _cut_files}[reader]
    parts, left_out = read(data, corpus)
    _check_encoding(parts, data)
    if corpus.features == "kaldi":
        about_features = [_features_remark(parts, data)]
    # 2. Choose lexicon and text rules that suit the transcripts.
    texts = [text_of(cut) for cuts in parts.values() for cut in cuts]
    if lm_text is not None:
        check_sentences(lm_text)
        if next(read_sentences(lm_text, LetterLexiconRules()), None) is None:
            raise ManifestError(f"{lm_text}: the text for the language model has no words")
    prepared = _kaldi_dictionary(data) if reader == "kaldi" else None
    if lexicon is None and prepared is not None:
        lexicon = str(prepared)
    policy: TextPolicy | None = None
    notes: tuple[str, ...] = ()
    about_text: list[str] = []
    if lexicon not in (None, "cmudict", "graphemes"):
        dictionary = read_lexicon(Path(lexicon), policy=TextPolicy(AS_GIVEN))
        notes = dictionary.notes
        policy, coverage, counts = choose_policy(texts, dictionary.lexicon, prepared is not None)
        about_text = _text_remarks(policy, coverage, counts)
    # 3. Choose the splits, and write the recipe with these choices as settings.
    summary = survey(parts, corpus, left_out, policy)
    chosen = _choose_lexicon(texts, lexicon, policy, notes)
    settings = Settings(
        summary.corpus,
        round(summary.hours["train"], 2) or 0.01,  # sizes of systems need hours above 0
        chosen.lexicon,
        chosen.normaliser,
        policy is not None and policy.split_clitics,
        chosen.alphabet,
        lm_text,
    )
    about = [*summary_lines(summary), *about_features, chosen.remark, *about_text]
    written = write_recipe(root, name, settings, "\n".join(f"- {line}" for line in about))
    return NewCorpus(tuple(written), (*about, *warning_lines(summary)))


def _tables(path: Path, corpus: CorpusConfig) -> tuple[dict[str, list[MonoCut]], list[str]]:
    """Read a table, or the tables in a folder; return the names of the unused parts too."""
    if path.is_dir():
        tables = tables_in(path)
        if any(re.match(r"train(?![a-z])", name.lower()) for name in tables):
            used, left_out = _used(sorted(tables))
            return {name: read_part(tables[name], corpus.map_paths) for name in used}, left_out
        kaldi = next(chain(path.glob("wav.scp"), path.glob("*/wav.scp")), None)
        hint = "such as table.csv, or call the tables of its parts train, dev and test"
        hint = f"or give --from-kaldi, because there is {kaldi}" if kaldi else hint
        raise ManifestError(f"{path} is a folder: name the table in it, {hint}")
    return read_table(path, corpus.map_paths), []


def _cut_files(root: Path, corpus: CorpusConfig) -> tuple[dict[str, list[MonoCut]], list[str]]:
    """Read the files of cuts that a recipe uses; return the names of the unused parts too."""
    files = cut_files(root)
    used, left_out = _used(sorted(files))
    return {name: read_cut_file(files[name], corpus.map_paths) for name in used}, left_out


def _kaldi_parts(folder: Path, corpus: CorpusConfig) -> tuple[dict[str, list[MonoCut]], list[str]]:
    """Read the data directories that a recipe uses; return the names of the unused ones too."""
    folders, left_out = _kaldi_folders(folder)
    if corpus.features == "kaldi":
        read = partial(read_feature_dir, path_map=corpus.map_paths)
    else:
        run_pipe = PipeRunner(corpus.pipes) if corpus.pipes is not None else None
        read = partial(read_kaldi_dir, run_pipe=run_pipe, path_map=corpus.map_paths)
    return {name: read(path) for name, path in folders.items()}, left_out


def _kaldi_folders(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the data directories that a recipe uses, by part, and the names of the unused ones."""
    if folder.is_file():
        raise ManifestError(
            f"{folder} is a file: give --from-kaldi the folder that contains wav.scp, text and "
            "utt2spk, or use --from-csv if the file is a table"
        )
    # A data directory itself, or a folder of data directories
    if any((folder / table).is_file() for table in KALDI_TABLES):
        return {"train": folder}, []
    tables = chain.from_iterable(folder.glob(f"*/{table}") for table in KALDI_TABLES)
    names = sorted({path.parent.name for path in tables})
    if not names:
        raise ManifestError(
            f"{folder} is neither a Kaldi data directory (wav.scp or feats.scp, text, utt2spk) nor "
            "a folder of Kaldi data directories"
        )
    used, left_out = _used(names)
    return {name: folder / name for name in used}, left_out


def _lacks_audio(folder: Path, path_map: tuple[str, ...]) -> bool:
    """Return whether all Kaldi data directories have features, and one of them has no audio.

    Raises:
      ManifestError: one has only features, and another has no features.
    """
    folders = _kaldi_folders(folder)[0]
    with_features = [name for name in folders if (folders[name] / "feats.scp").is_file()]
    no_audio = [name for name in with_features if not _has_audio(folders[name], path_map)]
    if no_audio and len(with_features) < len(folders):
        without_features = ", ".join(name for name in folders if name not in with_features)
        raise ManifestError(
            f"{folder}: {', '.join(no_audio)} has features but no audio, and {without_features} has"
            " no feats.scp. A recipe uses either audio or features: compute the features of all"
            " parts"
        )
    return bool(no_audio)


def _has_audio(folder: Path, path_map: tuple[str, ...]) -> bool:
    """Return whether a data directory names audio that exists, or commands that may write it."""
    table = folder / "wav.scp"
    if not table.is_file():
        return False
    recordings = (audio for _, audio in read_scp(table, path_map=path_map))
    return any(
        os.path.isfile(audio.path) or (audio.fault or ("",))[0] == "refused-pipe"
        for audio in recordings
    )


def _features_remark(parts: dict[str, list[MonoCut]], data: Path) -> str:
    """Return the remark that features are used, with their size, frame shift and the reason."""
    # The most frequent number of values per frame; the check reports the others.
    cuts = [cut for part in parts.values() for cut in part if not has_audio(cut)]
    sizes = Counter(map(feature_dimension, cuts)).most_common(1)
    values = f"{sizes[0][0]} values per frame" if sizes else "no readable values"
    names = {path.name for folder in _kaldi_folders(data)[0].values() for path in folder.iterdir()}
    shift = "frame_shift" if "frame_shift" in names else "utt2dur"
    step = "a frame shift of 10 ms"
    step = f"{step} (from {shift})" if shift in names else f"{step} (assumed)"
    cmvn = ". cmvn.scp is not needed: means by speaker are computed" if "cmvn.scp" in names else ""
    reason = "none of the files in wav.scp exists" if "wav.scp" in names else "there is no wav.scp"
    return (
        f"features: from feats.scp, with {values}, {step}. Audio is not used, because {reason}. "
        f"There are no copies at other speeds and no bundle, which need audio{cmvn}"
    )


def _used(names: list[str]) -> tuple[list[str], list[str]]:
    """Divide the sorted names of parts into used and unused ones."""
    used = {name for chosen in choose_parts(names).values() for name in chosen}
    return sorted(used), [name for name in names if name not in used]


def _check_encoding(parts: dict[str, list[MonoCut]], data: Path) -> None:
    """Raise a ManifestError if too many lines are not UTF-8; the data check reports a few."""
    cuts = [cut for part in parts.values() for cut in part]
    broken = [cut for cut in cuts if (cut.custom or {}).get("fault") == NOT_UTF8]
    if too_many(len(broken), len(cuts)):
        raise ManifestError(
            f"{data}: {len(broken)} of {len(cuts)} utterances are not UTF-8. The first is "
            f"{broken[0].id}: {broken[0].custom['fault_detail']}"
        )


@dataclass(frozen=True)
class _LexiconChoice:
    """The lexicon of a new corpus, with the text policy and alphabet that it needs."""

    lexicon: str
    """"cmudict", "graphemes" or a file."""
    normaliser: str
    """The text policy."""
    alphabet: str
    """Letters of the words in the lexicon."""
    remark: str
    """Message to the user about the choice."""


def _kaldi_dictionary(folder: Path) -> Path | None:
    """Return a Kaldi dict directory, lexicon or lang directory in or beside `folder`, or None."""
    roots = (folder, folder.parent)
    for place in (root / name for root in roots for name in DICTIONARIES):
        if (place / "silence_phones.txt").is_file():
            return place
        if (place / "lexicon.txt").is_file():
            return place / "lexicon.txt"
    places = (root / name for root in roots for name in ("lang", "lang_nosp"))
    return next((place for place in places if (place / ALIGN_LEXICON).is_file()), None)


def _text_remarks(
    policy: TextPolicy, coverage: dict[str, Coverage], counts: TextCounts
) -> list[str]:
    """Return remarks on the chosen text rules, with the counts that led to them."""
    as_given, normalised = (f"{c.known} of {c.words}" for c in coverage.values())
    remarks = [
        f"text: {policy.id}; as written, {as_given} words are in the lexicon, and {normalised} in"
        " upper case without punctuation (lang.normaliser in config.py overrides this)"
    ]
    if policy.split_clitics:
        examples = (
            f"{word} as {' '.join(split_clitics(word, policy.lexicon))}"
            for word, _ in counts.clitics.most_common(EXAMPLES)
        )
        remarks.append(
            f"clitics: {sum(counts.clitics.values())} words are split, such as "
            f"{', '.join(examples)} (lang.split_clitics=False in config.py keeps them whole)"
        )
    return remarks


def _rules_for(lexicon: str) -> str:
    """Return the text rules of a lexicon that is chosen by its name."""
    return EnglishLexiconRules.id if lexicon == "cmudict" else LetterLexiconRules.id


def _choose_lexicon(
    texts: list[str], lexicon: str | None, policy: TextPolicy | None, notes: Sequence[str]
) -> _LexiconChoice:
    """Choose lexicon, text policy and alphabet.

    Args:
      texts: transcripts as written.
      lexicon: the user's choice; None: cmudict if enough words are in it, else graphemes.
      policy: text policy of a lexicon file; None for other lexicons.
      notes: notes about a lexicon file.
    """
    language = survey_language(texts, policy.lexicon if policy else None, policy)
    share = f"{language.known_share:.0%} of {language.words} words"
    if policy is None and any(re.search(r"\d", text) for text in texts):
        share += " (without those that have digits)"
    if policy is not None:
        remark = f"{share} are in it; the others get guessed pronunciations"
        remark += "".join(f"; {note}" for note in notes)
    elif lexicon is not None:
        remark = f"{share} are in the English lexicon"
    else:
        lexicon = "cmudict" if language.english else "graphemes"
        decision = "treated as English" if language.english else "not treated as English"
        remark = f"{share} are in the English lexicon: {decision} (--lexicon overrides this)"
    if lexicon != "cmudict":
        remark += f"; letters: {show_letters(language.letters)}"
    normaliser = _rules_for(lexicon) if policy is None else policy.id
    remark = f"lexicon: {lexicon}; {remark}"
    return _LexiconChoice(lexicon, normaliser, language.alphabet, remark)
