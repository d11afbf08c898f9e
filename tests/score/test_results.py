import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from toolkit.errors import ToolkitError
from toolkit.score.results import (
    Result,
    markdown_table,
    print_results,
    read_results,
    record_results,
    results_table,
)
from toolkit.score.wer import score

REFS, HYPS = {"u": "the cat sat"}, {"u": "the hat sat down"}
MONO = Result.of(
    score(REFS, HYPS),
    score(REFS, HYPS, "char"),
    system="mono",
    split="dev",
    lm="3gram",
    rtf=0.012345,
    command="./run.py --stage 5",
)
LSTM = replace(MONO, system="lstm_ce", wer=10.0)


def test_file_has_the_agreed_fields(tmp_path):
    record_results(tmp_path / "results.json", [MONO])
    assert json.loads((tmp_path / "results.json").read_text()) == [
        {
            "system": "mono",
            "split": "dev",
            "lm": "3gram",
            "wer": 66.67,
            "cer": 55.56,
            "ins": 1,
            "del": 0,
            "sub": 1,
            "ref_words": 3,
            "rtf": 0.0123,
            "command": "./run.py --stage 5",
        }
    ]


def test_rows_are_replaced_in_place_and_added_at_the_end(tmp_path):
    path = tmp_path / "results.json"
    record_results(path, [MONO, LSTM])
    test = replace(MONO, split="test")
    better = replace(MONO, wer=50.0)
    assert record_results(path, [test, better]) == [better, LSTM, test]
    assert read_results(path) == [better, LSTM, test]


def test_same_results_give_the_same_bytes(tmp_path):
    record_results(tmp_path / "a", [MONO, LSTM])
    record_results(tmp_path / "b", [MONO])
    record_results(tmp_path / "b", [LSTM])
    record_results(tmp_path / "b", [MONO])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_absent_file_has_no_rows(tmp_path):
    assert read_results(tmp_path / "results.json") == []


@pytest.mark.parametrize("content", ["", "{}]", '{"a": 1}', '[{"system": "mono"}]', "[1]", "3"])
def test_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ToolkitError, match=r"results\.json: not a results file"):
        record_results(path, [MONO])
    assert path.read_text() == content


def test_table_shows_every_row_and_marks_the_best_of_a_split(capsys, tmp_path):
    table = results_table([replace(MONO, lm="3gram[small]"), LSTM, replace(MONO, split="test")])
    file = io.StringIO()
    Console(file=file, width=120, force_terminal=True, color_system="standard").print(table)
    output = file.getvalue()
    assert "3gram[small]" in output
    assert output.count("\x1b[1m10.00") == 1
    assert output.count("\x1b[1m66.67") == 1  # alone on its split, and not the best on dev
    record_results(tmp_path / "results.json", [MONO])
    print_results(tmp_path / "results.json")
    assert "66.67" in capsys.readouterr().out


def test_interval_of_the_words_is_in_the_row(tmp_path):
    refs = {f"u{n}": "a b c d" for n in range(20)}
    hyps = {u: "a b c x" if int(u[1:]) % 3 else "a b c d" for u in refs}
    words, characters = score(refs, hyps), score(refs, hyps, "char")
    row = Result.of(words, characters, system="m", split="d", lm="3", rtf=1.0, command="c")
    assert (row.wer_low, row.wer_high) == (
        round(words.interval.low, 2),
        round(words.interval.high, 2),
    )
    assert 0 < row.wer_low < row.wer < row.wer_high
    path = tmp_path / "results.json"
    assert read_results(path) == []
    record_results(path, [row])
    assert json.loads(path.read_text())[0]["wer_high"] == row.wer_high
    assert read_results(path) == [row]
    file = io.StringIO()
    Console(file=file, width=120).print(results_table([row, MONO]))
    assert f" {row.wer_low:.2f}-{row.wer_high:.2f} " in file.getvalue()


def test_without_errors_the_interval_is_not_nothing():
    refs = {f"u{n}": "one two three four five" for n in range(30)}
    words, characters = score(refs, refs), score(refs, refs, "char")
    row = Result.of(words, characters, system="m", split="d", lm="3", rtf=1.0, command="c")
    assert row.interval == "0.00-2.00"  # 3 errors in 150 words


def test_markdown_table_has_a_row_per_system_and_a_column_per_split():
    rows = [
        replace(MONO, wer_low=50.0, wer_high=80.126),
        replace(MONO, split="test", wer=20.0),
        LSTM,
    ]
    assert markdown_table(rows) == (
        "| system | LM | dev | test |\n"
        "| --- | --- | ---: | ---: |\n"
        "| mono | 3gram | 66.67 (50.00-80.13) | **20.00** |\n"
        "| lstm_ce | 3gram | **10.00** |  |\n"
    )


def test_measured_error_rates_with_speakers_unknown_have_a_column(tmp_path):
    path = tmp_path / "results.json"
    rows = [replace(MONO, wer_unknown_speaker=71.234), LSTM, replace(MONO, split="test", wer=20.0)]
    record_results(path, rows)
    assert read_results(path) == rows
    assert "wer_unknown_speaker" not in json.loads(path.read_text())[1]
    assert markdown_table(rows) == (
        "| system | LM | dev | dev, speaker unknown | test |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| mono | 3gram | 66.67 | 71.23 | **20.00** |\n"
        "| lstm_ce | 3gram | **10.00** |  |  |\n"
    )
    file = io.StringIO()
    Console(file=file, width=140).print(results_table(rows))
    assert "speaker unknown" in file.getvalue()
    assert " 71.23 " in file.getvalue()
    file = io.StringIO()
    Console(file=file, width=140).print(results_table(rows[1:]))
    assert "unknown" not in file.getvalue()
