"""`--json` of commands that print tables or figures: one document on standard output."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.hmm.tree import Leaf, Root, Tree


def run(*arguments, status=0):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == status, result.output
    return result


def read(*arguments, status=0):
    return json.loads(run(*arguments, "--json", status=status).stdout)


@pytest.fixture
def transcripts(tmp_path):
    (tmp_path / "ref").write_text("a-1 ONE TWO\nb-1 ONE\n")
    (tmp_path / "hyp").write_text("a-1 ONE\nb-1 ONE\n")
    return tmp_path


def test_combine(transcripts):
    arguments = ["combine", transcripts / "hyp", "--out", transcripts / "out"]
    assert read(*arguments) == {"rule": "mbr", "weights": [1.0], "score": None}
    document = read(*arguments, "--ref", transcripts / "ref", "--tune", "--rule", "best")
    assert (document["rule"], document["weights"]) == ("best", [1.0])
    assert (document["score"]["errors"], document["score"]["reference_units"]) == (1, 3)
    assert (transcripts / "out/text").exists()


def test_lattice_oracle(transcripts, monkeypatch):
    from toolkit.kaldi import lattices

    texts = {"a-1": "ONE", "b-1": "ONE"}
    monkeypatch.setattr(lattices, "oracle_texts", lambda *_: (texts, 30, 4.0))
    document = read("lattice", "oracle", "dev", "--ref", transcripts / "ref")
    assert (document["errors"], document["lattices"], document["arcs_per_second"]) == (1, 2, 7.5)


def test_kaldi_show_of_a_table(tmp_path):
    (tmp_path / "m.ark").write_text("a  [\n  1 2\n  3 4 ]\nb  [\n  5 6 ]\n")
    document = read("kaldi", "show", tmp_path / "m.ark", "--count", 1)
    assert document["number"] == 2
    (entry,) = document["entries"]
    assert (entry["key"], entry["kind"], entry["file"]) == ("a", "text", str(tmp_path / "m.ark"))
    (entry,) = read("kaldi", "show", tmp_path / "m.ark", "--key", "b")["entries"]
    assert (entry["shape"], entry["values"]) == ([1, 2], [[5.0, 6.0]])
    unknown = run("kaldi", "show", tmp_path / "m.ark", "--key", "c", "--json", status=1)
    assert "has no entry 'c'" in unknown.stderr


def test_kaldi_show_of_a_data_directory(tmp_path):
    (tmp_path / "utt2spk").write_text("a-1 a\n")
    document = read("kaldi", "show", tmp_path, status=1)
    assert document["faults"]
    assert set(document) == {"faults", "remarks"}


@pytest.fixture
def tree(tmp_path):
    roots = tuple(Root((phone,), 0, Leaf(phone - 1, 10 * phone)) for phone in (1, 2))
    Tree(("SIL", "AH"), roots).save(tmp_path / "tree.json")
    return tmp_path / "tree.json"


def test_hmm_show_tree(tree):
    document = read("hmm", "show-tree", tree, "--phone", "AH")
    leaf = {"phones": "AH", "state": 0, "tree": {"pdf": 1, "frames": 20}}
    assert document == {"phones": "SIL AH", "roots": [leaf]}


@pytest.mark.parametrize("flags", [["--json", "--dot", "-"], ["--dot", "-", "--json"]])
def test_json_refuses_a_second_document_on_standard_output(tree, flags):
    result = run("hmm", "show-tree", tree, "--phone", "AH", *flags, status=2)
    assert "both print to standard output: give --dot a file, not -" in result.stderr
    assert result.stdout == ""


def test_ssl_choose_k(monkeypatch):
    from toolkit.ssl import teacher_evaluation

    rows = [teacher_evaluation.Row(k, 1e6, 0.1, 0.1, 2.0, 0.5 / k**3) for k in (1, 5, 40)]
    monkeypatch.setattr(teacher_evaluation, "choose_k", lambda *_: rows)
    folders = ("--teacher", "--teacher-normaliser", "--student", "--features", "--out")
    document = read("ssl", "choose-k", *(word for name in folders for word in (name, "x")))
    assert [row["k"] for row in document["rows"]] == [1, 5, 40]
    assert document["smallest_sufficient"] == 5


def test_ssl_calibration(monkeypatch):
    from toolkit.align import store
    from toolkit.hmm import senones, topology
    from toolkit.ssl import teacher_evaluation

    for module, name in ((store, "AlignmentStore"), (store, "LowRateAlignments")):
        monkeypatch.setattr(module, name, lambda *_: None)
    for kind in (senones.Senones, topology.Topology):
        monkeypatch.setattr(kind, "load", lambda *_: None)
    figures = {"frames": 3, "nll": np.float64(0.25).item()}
    monkeypatch.setattr(teacher_evaluation, "measure_calibration", lambda *_: figures)
    names = ("teacher", "normaliser", "features", "alignments", "topology", "senones", "out")
    folders = [word for name in names for word in (f"--{name}", "x")]
    assert read("ssl", "calibration", *folders) == figures
    assert re.match(r"frames +3\n", run("ssl", "calibration", *folders).stdout)


def test_pipeline_summary(tmp_path, monkeypatch):
    from toolkit.pipeline import executor

    step = {"step": "extract", "partitions": 2, "done": 1, "kept": 0, "attempts_failed": 0}
    content = step | {"bytes": 5, "wall_seconds": 1.5}
    summaries = {"lake": content}
    monkeypatch.setattr(executor, "read_summary", lambda _, out: summaries.get(Path(out).name))
    document = read("pipeline", "summary", tmp_path / "lake", tmp_path / "none", status=1)
    assert document["steps"] == [{"out": str(tmp_path / "lake"), **content}]
    assert (document["total"]["steps"], document["total"]["done"]) == (1, 1)
