"""The files of a run directory and configuration files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from tests.markers import make_marker
from toolkit.config.settings import load_yaml, to_plain
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Marker, Progress, Provenance, UnreadableMarkerError
from toolkit.storage.digests import Content

MARKER = make_marker(
    3,
    "Train",
    parameters={"ce": {"epochs": 4, "rate": 1e-3}},
    inputs={"lang": Content(5, "a" * 32, files={"words.txt": "b" * 32})},
    outputs={"mono": Content(7, "c" * 32)},
    seconds=60.0,
    headline={"wer": 8.25},
)


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    layers: int = 2
    names: tuple[str, ...] = ()

    def __post_init__(self):
        if self.layers < 1:
            raise ValueError("layers must be at least 1")


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    optional: Inner | None = None
    root: Path = Path("x")
    kind: Literal["a", "b"] = "a"
    table: dict[str, float] = field(default_factory=dict)
    loud: bool = False


YAML = """inner:
  rate: 1e-3
  names: [x, 'y']
root: ../speech
kind: b
table: {a: 1.5, b: 2}
loud: yes
"""


def run_directory(folder):
    directory = RunDirectory(folder)
    MARKER.write(directory.marker(3))
    directory.write(directory.provenance(4), MARKER.provenance.to_json())
    directory.write(directory.progress(4), Progress(3, 10, 2.5).to_json())
    (folder / "mono").write_text("model")
    digests = directory.load_digests()
    digests.content(folder / "mono")
    digests.save()


def use_run_directory(folder):
    directory = RunDirectory(folder)
    Marker.read(directory.marker(3))
    provenance = Provenance.read(directory.provenance(4))
    progress = Progress.read(directory.progress(4))
    directory.load_digests().content(folder / "mono")
    return provenance, progress and progress.done + progress.total + progress.seconds


READERS = {
    # The runner says of a marker that it is damaged behind the name of its stage.
    "run-directory": Reader(run_directory, use_run_directory, names=("the marker",)),
    "yaml": Reader(
        lambda folder: (folder / "my.yaml").write_text(YAML),
        lambda folder: to_plain(load_yaml(Outer(), folder / "my.yaml")),
    ),
}


@pytest.mark.parametrize(
    "content",
    [
        "table: !!python/object/apply:os.mkdir ['{trace}']",
        "!!python/object/new:os.system ['mkdir {trace}']",
        "inner: !!python/name:os.system",
        "a: &a [x, x]\nb: &b [*a, *a]\nroot: [*b, *b]",
        "inner: &a {{x: *a}}",
        "root: " + "[" * 3000,
        "inner: {{" * 800,
        "kind: 2021-99-99",
        "inner: {{rate: .nan, layers: .inf}}",
        "loud: yes\nloud: no",
        "? [1, 2]\n: x",
    ],
)
def test_yaml_beyond_plain_data_is_refused(content, tmp_path):
    from toolkit.config.settings import ConfigError

    trace = tmp_path / "trace"
    (tmp_path / "my.yaml").write_text(content.format(trace=trace))
    with pytest.raises(ConfigError, match=r"my\.yaml"):
        load_yaml(Outer(), tmp_path / "my.yaml")
    assert not trace.exists()


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "", "."])
def test_no_marker_reaches_outside_the_run_directory(name, tmp_path):
    """Completing an interrupted publication moves files that block the outputs."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    name = str(outside) if name == "/outside" else name
    directory = RunDirectory(tmp_path / "exp")
    hostile = Marker(**{**vars(MARKER), "outputs": {name: Content(7, "c" * 32)}})
    hostile.write(directory.publishing(3))
    with pytest.raises(UnreadableMarkerError, match="outside"):
        Marker.read(directory.publishing(3))
    directory.partial(3).mkdir(parents=True)
    (directory.partials / "outside").write_text("theirs")
    directory.recover(directory.load_digests())
    assert outside.read_text() == "mine"
    assert not directory.marker(3).exists()
