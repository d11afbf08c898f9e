from dataclasses import dataclass, field
from pathlib import Path

import pytest

from toolkit.config.settings import (
    ConfigError,
    apply_overrides,
    flatten,
    load_yaml,
    resolve_paths,
    to_plain,
)

BASE = Path("/base")


@dataclass(frozen=True)
class Chunks:
    shortest: int = 1
    longest: int = 32

    def __post_init__(self):
        if self.shortest > self.longest:
            raise ValueError(f"shortest {self.shortest} is above longest {self.longest}")


@dataclass(frozen=True)
class Train:
    epochs: int = 4
    rate: float = 0.1
    chunks: Chunks = field(default_factory=Chunks)


@dataclass(frozen=True)
class Text:
    path: Path


@dataclass(frozen=True)
class Config:
    seed: int = 0
    ce: Train = field(default_factory=Train)
    smbr: Train | None = None
    text: Text | None = None
    root: Path = Path("corpus")
    parts: tuple[Path, ...] = (Path("a"),)


def test_overrides_reach_nested_fields_and_the_last_wins():
    changed = apply_overrides(Config(), ["ce.epochs=5", "seed=1", "ce.epochs=6"], BASE)
    assert changed == Config(seed=1, ce=Train(epochs=6))


def test_relative_paths_start_from_the_base():
    changed = apply_overrides(Config(), ["root=../speech", "parts=x,/y"], Path("/a/b"))
    assert changed.root == Path("/a/b/../speech")
    assert changed.parts == (Path("/a/b/x"), Path("/y"))


def test_fields_that_are_valid_only_together_are_set_together():
    changed = apply_overrides(Config(), ["ce.chunks.shortest=50", "ce.chunks.longest=60"], BASE)
    assert changed.ce.chunks == Chunks(50, 60)


def test_a_refused_value_names_its_key():
    with pytest.raises(ConfigError, match=r"`ce.chunks.shortest`: shortest 50 is above longest 32"):
        apply_overrides(Config(), ["ce.chunks.shortest=50"], BASE)


def test_an_optional_section_appears_when_a_field_of_it_is_set():
    assert apply_overrides(Config(), ["smbr.epochs=1"], BASE).smbr == Train(epochs=1)
    assert apply_overrides(Config(smbr=Train()), ["smbr=none"], BASE).smbr is None
    with pytest.raises(ConfigError, match="`text` is not set in this profile"):
        apply_overrides(Config(), ["text.path=a"], BASE)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("ce.epoch=4", r"unknown key `ce.epoch`; did you mean `ce.epochs`\? \(`ce` has epochs"),
        ("epochs=4", r"unknown key `epochs`; did you mean `ce.epochs` or `smbr.epochs`\?"),
        ("train.epochs=4", r"did you mean `ce.epochs` or `smbr.epochs`\?"),
        ("ce.chunk.longest=4", r"did you mean `ce.chunks`\?"),
        ("sede=1", r"did you mean `seed`\?"),
        ("seed.x=1", r"`seed` has no keys below it"),
        ("zzz=1", r"unknown key `zzz` \(known keys: seed, ce"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(override, hint):
    with pytest.raises(ConfigError, match=hint):
        apply_overrides(Config(), [override], BASE)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ce.epochs=four", "`ce.epochs` expects int, not 'four'"),
        ("ce=4", r"`ce` expects a section \(set its fields: epochs, rate, chunks\)"),
        ("ce.epochs", "is not of the form key=value"),
        ("ce.rate=NaN", "`ce.rate`: `rate` is nan but must be a number"),
    ],
)
def test_a_value_of_the_wrong_type_names_key_and_type(override, message):
    with pytest.raises(ConfigError, match=message):
        apply_overrides(Config(), [override], BASE)


def test_a_section_and_a_field_of_it_cannot_both_be_set():
    with pytest.raises(ConfigError, match="whole section `smbr` are set"):
        apply_overrides(Config(), ["smbr=none", "smbr.epochs=2"], BASE)


def test_yaml_changes_fields_and_its_paths_start_from_its_folder(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("ce:\n  rate: 1e-3\n  chunks: {longest: 64}\nroot: speech\nsmbr: {epochs: 2}\n")
    changed = load_yaml(Config(), file)
    assert changed.ce == Train(rate=1e-3, chunks=Chunks(longest=64))
    assert changed.root == tmp_path / "speech"
    assert changed.smbr == Train(epochs=2)
    file.write_text("")
    assert load_yaml(Config(), file) == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ce: {epoch: 4}", "my.yaml: unknown key `ce.epoch`; did you mean `ce.epochs`"),
        ("cee: {epochs: 4}", "unknown key `cee.epochs`; did you mean `ce`"),
        ("ce: {epochs: [1]}", "`ce.epochs` expects int"),
        ("- 1", "expected `key: value` lines"),
        ("a: [", "is not plain YAML"),
        ("a: !!python/object/apply:os.getcwd []", "is not plain YAML"),
        ("ce.epochs: 3\nce: {epochs: 4}", "`ce.epochs` is given twice, in a section and by"),
        ("ce: {epochs: 010}", "`010` is not decimal in YAML"),
        ("ce: {epochs: 1:30}", "`1:30` is not decimal in YAML"),
        ("ce: {rate: -1:30.5}", "`-1:30.5` is not decimal in YAML"),
        ("ce: {rate: .nan}", "`ce.rate`: `rate` is nan but must be a number"),
    ],
)
def test_faults_in_yaml_name_file_and_key(tmp_path, text, message):
    (tmp_path / "my.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_yaml(Config(), tmp_path / "my.yaml")


def test_a_missing_yaml_file_is_a_user_fault(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_yaml(Config(), tmp_path / "none.yaml")


def test_annotations_may_be_strings():
    namespace: dict = {"__name__": "strings"}
    exec(  # the future import must head a module of its own
        "from __future__ import annotations\n"
        "import sys, types\n"
        "from dataclasses import dataclass\n"
        "sys.modules['strings'] = types.SimpleNamespace(__dict__=globals())\n"
        "@dataclass(frozen=True)\nclass C:\n    n: int | None = None\n",
        namespace,
    )
    assert apply_overrides(namespace["C"](), ["n=3"], BASE).n == 3


def test_to_plain_gives_json_and_flattens_to_dotted_keys():
    document = to_plain(Config(parts=(Path("/a"), Path("b"))))
    assert document["ce"] == {"epochs": 4, "rate": 0.1, "chunks": {"shortest": 1, "longest": 32}}
    assert document["parts"] == ["/a", "b"]
    flat = flatten(document)
    assert flat["ce.chunks.longest"] == 32
    assert flat["smbr"] is None
    assert to_plain(float("inf")) == "inf"
    assert to_plain({3: {2, 1}}) == {"3": [1, 2]}
    with pytest.raises(TypeError, match="no JSON form"):
        to_plain(object())


def test_relative_paths_of_a_profile_are_resolved():
    resolved = resolve_paths(Config(text=Text(Path("x"))), Path("/recipe"))
    assert resolved.root == Path("/recipe/corpus")
    assert resolved.parts == (Path("/recipe/a"),)
    assert resolved.text == Text(Path("/recipe/x"))
    assert resolved.smbr is None


@dataclass(frozen=True)
class WarmTrain(Train):
    warmup: int = 10


def test_fields_of_a_profiles_section_subclass_can_be_set(tmp_path):
    config = Config(ce=WarmTrain())
    changed = apply_overrides(config, ["ce.warmup=20", "ce.chunks.longest=64"], BASE)
    assert changed.ce == WarmTrain(chunks=Chunks(longest=64), warmup=20)
    with pytest.raises(ConfigError, match=r"did you mean `ce\.warmup`"):
        apply_overrides(config, ["ce.warmups=20"], BASE)
    (tmp_path / "my.yaml").write_text("ce:\n  warmup: 5\n")
    assert load_yaml(config, tmp_path / "my.yaml").ce == WarmTrain(warmup=5)


def test_the_example_in_the_message_is_a_setting_of_this_configuration():
    from toolkit.lang.config import LangConfig

    with pytest.raises(ConfigError, match=r"key=value, e\.g\. max_unknown=0\.1$"):
        apply_overrides(LangConfig(), ["x"], Path())


@pytest.mark.parametrize("lexicon", ["cmudict", "none"])
def test_the_built_in_lexicon_can_be_named(lexicon, tmp_path):
    from toolkit.lang.config import LangConfig

    config = apply_overrides(LangConfig(Path("x")), [f"lexicon={lexicon}"], tmp_path)
    assert config.lexicon is None
    assert config == LangConfig()
    (path,) = [apply_overrides(config, ["lexicon=./cmudict"], tmp_path).lexicon]
    assert path == tmp_path / "cmudict"
