import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_metadata
from toolkit.pipeline.config import SelectConfig
from toolkit.pipeline.lake import LakeError, Record, open_lake
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.steps import select as module
from toolkit.pipeline.steps.select import (
    choose_buckets,
    estimate_hours,
    plan_sample,
    select_records,
)

CONFIG = SelectConfig(hours=2.0, hours_per_file=0.1)


@pytest.fixture
def big(store, tmp_path):
    """5,000 records, about 5 hours, of 80 speakers."""
    return make_metadata(
        store,
        str(tmp_path / "lake"),
        5000,
        80,
        SyntheticLakeConfig(days=60, interval_days=15, buckets=4),
    )


def records_of(refs, store):
    return [Record.from_line(line) for ref in refs for line in store.get(ref).splitlines()]


def chosen_by_hand(lake, store, config):
    """The selection by its definition, in one process: the smallest random numbers that fit."""
    draw = module.random_numbers(config.seed)
    records = [r for r in records_of(lake.objects, store) if module.is_eligible(r, config)]
    records.sort(key=lambda record: draw(record.id))
    total, chosen = 0.0, []
    for record in records:
        if total >= config.hours * 3600:
            break
        total += record.duration
        chosen.append(record.id)
    return chosen


def test_select_takes_the_records_of_the_smallest_numbers(big, here, store, tmp_path):
    files = select_records(big, CONFIG, here, store, str(tmp_path / "out")).files
    selected = records_of(files, store)
    expected = chosen_by_hand(big, store, CONFIG)
    ids = [record.id for record in selected]
    assert len(set(ids)) == len(ids)
    # the threshold is interpolated within one of 1,024 bins, a handful of utterances here
    assert len(set(ids) ^ set(expected)) <= 5
    assert sum(record.duration for record in selected) / 3600 == pytest.approx(2.0, rel=0.005)


def test_files_hold_whole_speakers_in_time_order_and_are_near_equal(big, here, store, tmp_path):
    files = select_records(big, CONFIG, here, store, str(tmp_path / "out")).files
    owner = {}
    for ref in files:
        records = records_of([ref], store)
        assert ref.about["utterances"] == len(records)
        assert ref.about["hours"] == pytest.approx(sum(r.duration for r in records) / 3600)
        speakers = list(dict.fromkeys(record.speaker for record in records))
        assert ref.about["speakers"] == len(speakers)
        assert records == sorted(records, key=lambda r: (r.speaker, r.time, r.id))
        for speaker in speakers:
            assert owner.setdefault(speaker, ref.path) == ref.path
    hours = [ref.about["hours"] for ref in files]
    assert len(files) == pytest.approx(20, abs=2)
    assert max(hours) < 1.25 * min(hours)  # about four speakers of 0.025 h in each


def test_the_choice_depends_neither_on_partitions_nor_buckets(
    big, here, store, tmp_path, monkeypatch, contents
):
    files = select_records(big, CONFIG, here, store, str(tmp_path / "one")).files
    ids = sorted(record.id for record in records_of(files, store))
    monkeypatch.setattr(module, "PARTITION_BYTES", 50_000)
    monkeypatch.setattr(module, "BUFFER_BYTES", 1_000)
    assert len(plan_sample(big)) > 10
    again = select_records(big, CONFIG, here, store, str(tmp_path / "two")).files
    assert [store.get(ref) for ref in again] == [store.get(ref) for ref in files]
    unknown = replace(big, buckets=None)
    selected = select_records(
        unknown, replace(CONFIG, hours_per_file=0.05), here, store, str(tmp_path / "3")
    ).files
    assert sorted(record.id for record in records_of(selected, store)) == ids


def test_a_smaller_selection_is_part_of_a_larger_one_and_seeds_differ(big, here, store, tmp_path):
    def ids(**change):
        files = select_records(
            big, replace(CONFIG, **change), here, store, str(tmp_path / "out")
        ).files
        return {record.id for record in records_of(files, store)}

    assert ids(hours=1.0) < ids()
    shared = len(ids() & ids(seed=1)) / len(ids())
    assert shared == pytest.approx(2.0 / sum(r.about["hours"] for r in big.objects), abs=0.05)


def test_limits_of_time_and_duration_keep_the_requested_hours(big, here, store, tmp_path):
    times = sorted(record.time for record in records_of(big.objects, store))
    middle = times[len(times) // 2]
    config = replace(CONFIG, hours=1.5, until=middle, min_duration=1.0, max_duration=10.0)
    selected = records_of(
        select_records(big, config, here, store, str(tmp_path / "out")).files, store
    )
    assert all(r.time < middle and 1.0 <= r.duration <= 10.0 for r in selected)
    assert sum(record.duration for record in selected) / 3600 == pytest.approx(1.5, rel=0.01)
    with pytest.raises(LakeError, match="fewer than"):
        select_records(big, replace(config, hours=4.0), here, store, str(tmp_path / "out"))
    with pytest.raises(LakeError, match=r"0\.00 h"):
        select_records(big, replace(config, locale="de-DE"), here, store, str(tmp_path / "out"))


def test_selection_is_uniform_over_time(big, here, store, tmp_path):
    selected = records_of(
        select_records(big, CONFIG, here, store, str(tmp_path / "out")).files, store
    )
    every = sorted(record.time for record in records_of(big.objects, store))
    share = len(selected) / len(every)
    for quarter in range(4):
        low, high = every[quarter * 1250], every[min((quarter + 1) * 1250, len(every) - 1)]
        inside = sum(low <= record.time < high for record in selected)
        assert abs(inside - 1250 * share) < 4 * math.sqrt(1250 * share * (1 - share))


def test_bad_lines_and_second_ids_are_listed(store, here, tmp_path):
    good = [Record(f"u{n}", f"s{n % 2}", 3.6, float(n), "", f"{n}.wav") for n in range(10)]
    lines = [record.to_line() for record in good]
    lines[3:3] = [b"nonsense\n", b'{"id": "x", "speaker": "s"}\n', lines[0]]
    store.put(str(tmp_path / "lake/metadata/2026/speakers.0000.jsonl"), b"".join(lines)[:-1])
    lake = open_lake(store, str(tmp_path / "lake"))

    class Listing:
        failures = ()

        def run(self, step, partitions, out):
            results = here.run(step, partitions, out)
            for result in results:
                self.failures += result.failures
            return results

    executor = Listing()
    config = SelectConfig(hours=0.011, hours_per_file=1.0)
    files = select_records(lake, config, executor, store, str(tmp_path / "out")).files
    assert sorted(record.id for record in records_of(files, store)) == [f"u{n}" for n in range(10)]
    reasons = dict(executor.failures)
    assert set(reasons) == {"2026/speakers.0000.jsonl:4", "2026/speakers.0000.jsonl:5", "u0"}
    assert "another record" in reasons["u0"]


def test_the_last_line_of_an_object_needs_no_newline(store, here, tmp_path):
    for part in range(3):
        records = [Record(f"u{part}{n}", "s", 3.6, n + part, "", f"{n}.wav") for n in range(2)]
        content = b"".join(record.to_line() for record in records)[:-1]
        store.put(str(tmp_path / f"lake/metadata/{part}/speakers.0000.jsonl"), content)
    lake = open_lake(store, str(tmp_path / "lake"))
    files = select_records(
        lake, SelectConfig(0.0055, hours_per_file=1.0), here, store, str(tmp_path / "o")
    ).files
    assert len(records_of(files, store)) == 6


def test_an_empty_first_object_does_not_matter(store, here, tmp_path):
    record = Record("u", "s", 36.0, 1.0, "", "u.wav")
    for part, content in enumerate([b"", b"no record\n", record.to_line(), b""]):
        store.put(str(tmp_path / f"lake/metadata/{part}/speakers.0000.jsonl"), content)
    lake = open_lake(store, str(tmp_path / "lake"))
    assert estimate_hours(lake.objects, store) > 0
    files = select_records(
        lake, SelectConfig(0.009, hours_per_file=1.0), here, store, str(tmp_path / "o")
    ).files
    assert [record.id for record in records_of(files, store)] == ["u"]
    with pytest.raises(LakeError, match="contain no records"):
        estimate_hours(lake.objects[:2], store)


def test_a_rewritten_object_of_the_list_is_read_again(store, here, tmp_path):
    path = tmp_path / "lake/metadata/2026/speakers.0000.jsonl"
    for second, seconds in enumerate((1.5, 2.5)):
        records = [Record(f"u{n:02d}", "s", seconds, n, "", "u.wav") for n in range(50)]
        store.put(str(path), b"".join(record.to_line() for record in records))
        os.utime(path, (second, second))  # as if written a second later, in as many bytes
        lake = open_lake(store, str(tmp_path / "lake"))
        config = SelectConfig(0.01, hours_per_file=1.0)
        files = select_records(lake, config, LocalExecutor(), store, str(tmp_path / "o")).files
        assert {record.duration for record in records_of(files, store)} == {seconds}


def test_a_carriage_return_within_a_record_is_space(store, here, tmp_path):
    """As JSON has it."""
    lines = [Record(f"u{n}", "s", 3.6, float(n), "", f"{n}.wav").to_line() for n in range(3)]
    lines[1] = lines[1].replace(b", ", b",\r")
    store.put(str(tmp_path / "lake/metadata/2026/speakers.0000.jsonl"), b"".join(lines))
    lake = open_lake(store, str(tmp_path / "lake"))
    files = select_records(
        lake, SelectConfig(0.003, hours_per_file=1.0), here, store, str(tmp_path / "o")
    ).files
    assert b"".join(store.get(ref) for ref in files) == b"".join(lines)


@pytest.mark.parametrize(
    ("lake", "hours", "expected"),
    [(None, 1000, 4), (8, 1000, 4), (3, 1000, 3), (4, 3000, 12), (7, 1000, 1)],
)
def test_number_of_buckets(lake, hours, expected):
    assert choose_buckets(hours, 5.0, lake) == expected


def test_pieces_are_few_without_a_list_of_buckets(big, here, store, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PARTITION_BYTES", 50_000)
    Path(big.url, "lake.json").unlink()
    listed_lake = open_lake(store, big.url)
    assert listed_lake.buckets == big.buckets == 4
    outputs = []

    class Listing:
        def run(self, step, partitions, out):
            results = here.run(step, partitions, out)
            outputs.append([ref for result in results for ref in result.outputs])
            return results

    many = replace(CONFIG, hours=1e6, hours_per_file=0.01)
    select_records(listed_lake, many, Listing(), store, str(tmp_path / "out"), up_to=True)
    pieces, _ = outputs
    # Hours of the lake, not those that were asked for, decide: each of its buckets in three parts.
    assert len(pieces) <= 3 * (len(plan_sample(listed_lake)) + 4)


def test_partitions_of_sampling_keep_buckets_together(big):
    (partition,) = plan_sample(big)
    buckets = [ref.path.rsplit("/", 1)[-1] for ref in partition.inputs]
    assert buckets == sorted(buckets)
    assert json.loads(json.dumps(partition.to_dict()))["about"]["hours"] > 4
