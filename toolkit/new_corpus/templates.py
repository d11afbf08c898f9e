"""Templates of the files of a new corpus."""

import json
from dataclasses import dataclass
from pathlib import Path

from toolkit.corpus.config import CheckConfig, CorpusConfig

RUN = '''#!/usr/bin/env python3
"""The hybrid recogniser on the corpus {name}: the stages of recipes/librispeech/run.py."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from toolkit.stages.bootstrap import use_project_environment

use_project_environment(ROOT)

{imports}

if __name__ == "__main__":
    recipe.for_corpus(Path(__file__), PROFILES, title=__doc__).main()
'''

CONFIG = '''"""The settings of the corpus {name}."""

{imports}

HOURS = {hours}
"""{about_hours}"""


def base() -> Config:
    """The whole corpus."""
    return config_for_hours(
        HOURS,
{sections}    )


PROFILES = {{"base": base}}
'''

NEURAL = (
    "# an LSTM language model: training reads the text four times, at 8,000 words per second\n"
    "# and core; neural=False skips it\n"
)
NO_COPIES = "# no copies of training utterances at other speeds, which need audio\n"
LANGUAGE = "# lang and check set the language: docs/own-language.md has the values for others\n"

README = """# {name}

{about}

```sh
recipes/{name}/run.py --stop-stage 3     # check the data; read exp/base/check/report.txt
recipes/{name}/run.py                    # all stages; after an interruption, it resumes
recipes/{name}/run.py --list             # state, time and result of each stage
```

`config.py` holds the settings; `--set section.key=value` changes one for a run. `HOURS` in
`config.py` sets the sizes of trees, mixtures and networks (recipes/librispeech/sizes.py). The
stages are those of [recipes/librispeech](../librispeech/README.md).

## Results

Copy `exp/base/results.md` here.
"""

READER = '''"""The corpus {name}: how its folder is laid out."""

from pathlib import Path

from lhotse import MonoCut

from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError
from toolkit.corpus.pairing import AudioSegment, pair
from toolkit.corpus.split import assemble


def manifests(corpus: CorpusConfig, root: Path) -> dict[str, list[MonoCut]]:
    """Read the corpus in the folder `root`; return the utterances by split.

    Change the lines up to `pair` to suit your layout. Unchanged, they read
    `<root>/<speaker>/<utterance>.wav` with the words in `<utterance>.txt` or `<utterance>.lab`
    beside it. They fill

    - `texts`: (utterance id, transcript), as written: later stages normalise case and punctuation.
    - `audio`: (utterance id, AudioSegment(file)), or AudioSegment(file, start, end) in seconds for
      a part of a file; WAV, FLAC, MP3, OGG, SPHERE, M4A, of any rate. Channels are averaged, unless
      AudioSegment(file, channel="A") names one: "A" or "1" is the first.
    - `speakers`: utterance id to speaker.

    Ids may be anything without white space, in any order. Leave nothing out: stage 3 finds and
    lists utterances that lack text or audio, are broken, too short or duplicated.

    `assemble` holds out "dev" and "test". If you have parts of your own, make a list of cuts for
    each: assemble({{"train": ..., "dev": ..., "test": ...}}, corpus).
    """
    texts, audio, speakers = [], [], {{}}
    for path in sorted(root.glob("*/*.wav")):
        id = f"{{path.parent.name}}-{{path.stem}}"
        speakers[id] = path.parent.name
        audio.append((id, AudioSegment(str(path.absolute()))))
        for words in (path.with_suffix(".txt"), path.with_suffix(".lab")):
            if words.is_file():
                texts.append((id, words.read_text(encoding="utf-8")))
                break
    if not audio:
        raise ManifestError(f"no */*.wav under {{root}}: adapt local/{name}.py to its layout")
    cuts = pair(texts, audio, lambda id, path: speakers[id], str(root))
    return assemble({{"train": cuts}}, corpus, hold_out_test=True)
'''


@dataclass(frozen=True)
class Settings:
    """The settings in config.py of a new corpus."""

    corpus: CorpusConfig | None = None
    """The reader and its settings; None: the user will write the reader."""
    hours: float = 1.0
    """Hours of training speech."""
    lexicon: str = "cmudict"
    """"cmudict", "graphemes" or a file."""
    normaliser: str = "english-upper-3"
    """The text policy."""
    split_clitics: bool = False
    """Whether the text policy splits words at clitics."""
    alphabet: str = CheckConfig().alphabet
    """The letters of the words; for cmudict the default is used."""
    lm_text: Path | None = None
    """Text for the language model; None: the training transcripts."""


def run_py(name: str) -> str:
    """Return the text of run.py."""
    imports = (
        f"from recipes.{name}.config import PROFILES",
        "from recipes.librispeech.run import recipe",
    )
    return RUN.format(name=name, imports="\n".join(sorted(imports, key=str.lower)))


def config_py(name: str, settings: Settings) -> str:
    """Return the text of config.py."""
    # 1. The sections of the configuration, as Python, and the imports that they need.
    own_reader = f"CorpusConfig({_quoted(name)}, root=None, dev_speakers=1, test_speakers=1)"
    sections = {"corpus": own_reader if settings.corpus is None else _corpus(settings.corpus)}
    modules = {
        "recipes.librispeech.config": {"Config"},
        "recipes.librispeech.sizes": {"config_for_hours"},
        "toolkit.corpus.config": {"CorpusConfig"},
        "toolkit.lang.config": {"LangConfig"},
    }
    is_builtin = settings.lexicon in ("cmudict", "graphemes")
    lang = {
        "lexicon": _quoted(settings.lexicon) if is_builtin else _path(Path(settings.lexicon)),
        "normaliser": _quoted(settings.normaliser),
    }
    if settings.split_clitics:
        lang["split_clitics"] = "True"
    sections["lang"] = _call("LangConfig", lang)
    if settings.corpus is not None and settings.corpus.features == "kaldi":
        sections["augment"] = "AugmentConfig()"
        modules["toolkit.features.augment"] = {"AugmentConfig"}
    if settings.lexicon != "cmudict" or settings.corpus is None:
        sections["check"] = _call("CheckConfig", {"alphabet": _string(settings.alphabet)})
        modules["toolkit.corpus.config"].add("CheckConfig")
    if settings.lm_text is not None:
        sections["lm"] = _call("NgramConfig", {"text": _path(settings.lm_text)})
        sections["neural"] = "True"
        modules["toolkit.lang.config"].add("NgramConfig")
    # 2. The text: sections with their remarks, imports, and the hours.
    remarks = {"neural": NEURAL, "augment": NO_COPIES}
    if settings.corpus is None:
        remarks["lang"] = LANGUAGE
    body = "".join(f"{remarks.get(key, '')}{key}={value},\n" for key, value in sections.items())
    body = _indented(body, 8)
    imports = [
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(modules.items())
    ]
    if "Path(" in body:
        imports = ["from pathlib import Path", "", *imports]
    about = "Hours of training speech; they set model sizes (recipes/librispeech/sizes.py).\n" + (
        "Put the hours_train that stage 3 prints here."
        if settings.corpus is None
        else "Measured when this file was made; stage 3 prints a new value if the corpus grows."
    )
    return CONFIG.format(
        name=name,
        imports="\n".join(imports),
        hours=f"{settings.hours:g}",
        about_hours=about,
        sections=body,
    )


def _corpus(corpus: CorpusConfig) -> str:
    """Return the call that makes a CorpusConfig, with the settings that are not defaults."""
    default = CorpusConfig(corpus.name)
    changed = {
        field: value for field, value in vars(corpus).items() if value != getattr(default, field)
    }
    words = {"": _quoted(corpus.name)}
    for field, value in changed.items():
        words[field] = _path(value) if isinstance(value, Path) else _literal(value)
    return _call("CorpusConfig", words)


def _call(name: str, arguments: dict[str, str]) -> str:
    """Return a call in the formatter's style: one line if it fits, else an argument per line."""
    words = [f"{key}={value}" if key else value for key, value in arguments.items()]
    line = f"{name}({', '.join(words)})"
    if len(line) <= 80 and "\n" not in line:
        return line
    inner = "".join(f"{word},\n" for word in words)
    return f"{name}(\n{_indented(inner, 4)})"


def _indented(text: str, width: int) -> str:
    """Indent the lines of a text."""
    # Not `splitlines`: names of files may contain U+0085 and U+2028, which do not end a line here.
    lines = text.removesuffix("\n").split("\n")
    return "".join(f"{' ' * width}{line}\n" for line in lines)


def _string(text: str) -> str:
    """Return a string literal, on several lines if it is long."""
    if len(text) <= 70:
        return _quoted(text)
    pieces = [text[i : i + 70] for i in range(0, len(text), 70)]
    return "(\n" + "".join(f"    {_quoted(piece)}\n" for piece in pieces) + ")"


def _literal(value: object) -> str:
    """Return the literal of a setting in the style of the formatter."""
    if isinstance(value, tuple):
        items = ", ".join(map(_literal, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _path(path: Path) -> str:
    """Return the call that makes an absolute path."""
    return f"Path({_quoted(str(path.absolute()))})"


def _quoted(text: str) -> str:
    """Return a string literal in double quotation marks."""
    return json.dumps(text, ensure_ascii=False)
