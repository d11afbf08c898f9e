import math
import os

import pytest
import torch
from safetensors.torch import save_file

from toolkit.align.ctm_textgrid import read_ctm
from toolkit.config.settings import read_yaml
from toolkit.corpus.manifest import probe_recording, read_cuts
from toolkit.corpus.table import read_table
from toolkit.corpus.wav_scp import read_scp
from toolkit.errors import ToolkitError
from toolkit.kaldi.archive import opened
from toolkit.lang.dictionary import read_dictionary
from toolkit.lang.tables import SymbolTable
from toolkit.storage.lines import read_content
from toolkit.storage.reading import read_json, read_tensors, reading, regular

READERS = {
    "words.txt": SymbolTable.read,
    "lexicon.txt": read_dictionary,
    "text.gz": lambda path: list(SymbolTable.read(path)),
    "ref.txt": lambda path: read_content(path, ToolkitError),
    "table.csv": read_table,
    "a.ctm": read_ctm,
    "a.yaml": read_yaml,
    "a.json": read_json,
    "a.safetensors": lambda path: read_tensors(path, {}),
    "cuts.jsonl": read_cuts,
    "feats.ark": opened,
    "wav.scp": read_scp,
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe(name, tmp_path):
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises((ToolkitError, OSError), match="not a regular file") as caught:
        READERS[name](path)
    assert name in str(caught.value)


@pytest.mark.timeout(10)
def test_audio_that_is_a_pipe_is_a_fault(tmp_path):
    os.mkfifo(tmp_path / "a.wav")
    _, fault = probe_recording(tmp_path / "a.wav", "a")
    assert "not a regular file" in fault


class Error(ToolkitError):
    pass


def test_devices_and_sockets_are_refused_too():
    message = r"/dev/zero: cannot be read \(not a regular file\); go away"
    with pytest.raises(Error, match=message), reading("/dev/zero", Error, "go away"):
        pass


def test_shell_pipes_and_missing_files_are_left_to_the_reader(tmp_path):
    read, write = os.pipe()
    os.write(write, b"{}")
    os.close(write)
    assert read_json(f"/dev/fd/{read}") == {}
    os.close(read)
    assert regular(tmp_path / "missing") == tmp_path / "missing"
    assert regular(tmp_path) == tmp_path
    with pytest.raises(Error, match=r"x\nn:3: cannot be read \(no\)"), reading("x\nn:3", Error, ""):
        raise ValueError("no")


@pytest.mark.parametrize("framework", ["pt", "np"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_a_tensor_that_is_not_finite_is_named(tmp_path, value, framework):
    path = tmp_path / "a.safetensors"
    kinds = [torch.float32, torch.float64, torch.float16]
    for kind in kinds if framework == "np" else [*kinds, torch.bfloat16]:
        largest = torch.tensor([torch.finfo(kind).max, torch.finfo(kind).min], dtype=kind)
        tensors = {"weights": torch.stack([largest] * 3), "empty": torch.zeros(0, 3, dtype=kind)}
        save_file({**tensors, "counts": torch.arange(4)}, path)
        assert set(read_tensors(path, {}, framework)[0]) == {"weights", "empty", "counts"}
        tensors["weights"][1, 0] = value
        save_file(tensors, path)
        with (
            pytest.raises(ToolkitError, match=r"a\.safetensors.*'weights'.*infinite or NaN"),
            reading(path, ToolkitError, "restore it"),
        ):
            read_tensors(path, {}, framework)
