import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from toolkit.tta.config import TtaConfig
from toolkit.tta.figures import (
    CONTRAST,
    accuracy_figure,
    loss_figure,
    states_figure,
    system_figure,
    throughput_figure,
    utilisation_figure,
)
from toolkit.tta.page import machine_cards, result_cards
from toolkit.tta.runs import read_platforms

CONFIG = TtaConfig(cer=(12, 8), wer=(24,), epochs=3)
MACHINE = {
    "cpu": "Some CPU",
    "cpus": 8,
    "cores": 4,
    "sockets": 2,
    "ghz": 3.0,
    "memory_gib": 16,
    "devices": [
        {"name": "GPU", "memory_gib": 8.0, "link": "PCIe 3 x16"},
        {"name": "GPU", "memory_gib": 8.0, "link": "PCIe 2 x1"},
    ],
}


@pytest.fixture
def platforms(training):
    about = {"name": "with <devices>", "machine": MACHINE, "settings": {"readers": 4}}
    folders = training("a", devices=2, about=about), training("b", cer=(30, 20, 10, 9, 9, 9))
    return read_platforms(map(str, folders))


def test_a_ring_marks_each_target_that_was_reached(platforms):
    text = accuracy_figure(platforms, "cer", CONFIG)
    assert text.count('class="ring') == 2 * 2  # 12 % by both, 8 % by none; in two drawings
    assert "TTA(12)" in text
    assert "with &lt;devices&gt;, epoch 2: CER 20.00 %" in text


def test_utilisation_shows_the_phases_of_devices(platforms):
    text = utilisation_figure(platforms[0], 0)
    for words in ("devices compute", "data and model to the devices", "device 1", "seconds"):
        assert words in text
    wide = text[text.index('<div class="wide">') : text.index('<div class="narrow">')]
    computes = re.findall(r'class="band compute"', wide)
    assert 8 <= len(computes) <= 12  # of 2 s each in 25 s, with an evaluation between


def test_without_devices_only_pauses_are_marked(platforms):
    text = utilisation_figure(platforms[1], 1)
    assert "no phases" in text
    assert "band compute" not in text
    assert "band pause" in text
    assert "evaluating" in text


def test_unmeasured_devices_are_not_reported_as_missing(training):
    for machine, expected in (
        (MACHINE | {"unmeasured": "a package is missing"}, "not measured: a package is missing."),
        (MACHINE, "The utilisation of the devices was not measured."),
    ):
        folder = training(f"d{len(machine)}", about={"machine": machine})
        text = utilisation_figure(read_platforms([str(folder)])[0], 0)
        assert expected in text
        assert "Without accelerators" not in text


@pytest.mark.parametrize("colour", range(8))
def test_the_lines_of_processors_have_different_colours(platforms, colour):
    text = utilisation_figure(platforms[1], colour)
    contrast = CONTRAST[colour]
    assert contrast != colour
    assert f'class="line c{colour}' in text
    assert f'class="line c{contrast}' in text


def test_curves_name_the_search_behind_them(training):
    about = {"settings": {"evaluation": "words+lm, width 256, all utterances"}}
    platforms = read_platforms([str(training("e", about=about))])
    assert "Recognised by words+lm, width 256" in accuracy_figure(platforms, "cer", CONFIG)
    platforms = read_platforms([str(training("f", about=about)), str(training("g"))])
    assert "g by an unnamed search" in accuracy_figure(platforms, "wer", CONFIG)
    assert "Recognised" not in accuracy_figure(platforms[1:], "wer", CONFIG)


def test_without_samples_there_is_no_figure(training, platforms):
    folder = training("c")
    log = folder / "log.jsonl"
    lines = [line for line in log.read_text().splitlines(True) if "utilisation" not in line]
    log.write_text("".join(lines))
    (platform,) = read_platforms([str(folder)])
    assert utilisation_figure(platform, 0) == ""


def test_throughput_has_a_panel_per_platform_with_equal_axes(platforms):
    text = throughput_figure(platforms, "Throughput")
    assert text.count("<h4>") == 2
    panels = text.split("<h4>")[1:]
    ticks = [re.findall(r'class="tick"[^>]*>([^<]+)<', panel) for panel in panels]
    assert ticks[0] == ticks[1]
    assert "Entries with a swap" in text


def test_the_other_figures_name_all_platforms(platforms):
    for text in (loss_figure(platforms), states_figure(platforms)):
        assert "with &lt;devices&gt;" in text
        assert ">b<" in text
    assert "evaluating 15 %" in states_figure(platforms)  # 5 of 4 s in 136.75


def test_cards_tell_result_machine_and_wires(platforms):
    text = result_cards(platforms, CONFIG)
    assert f"<b>{(3 + 4 * 26.75) / 60:.2f}</b><span>min to CER 12 %</span>" in text
    assert text.count('class="card c') == 2
    of_the_first = result_cards(platforms, TtaConfig(cer=(8,), wer=(), epochs=1))
    assert "<b>NA</b><span>never reached CER 8 %</span>" in of_the_first
    machines = machine_cards(platforms)
    for words in ("2 x Some CPU, 4 cores (8 CPUs usable), 3.0 GHz", "readers", "PCIe 2 x1"):
        assert words in machines
    widths = [float(w) for w in re.findall(r"stroke-width:([\d.]+)", machines)]
    assert widths[0] > 3 * widths[1]  # x16 against x1


def test_a_card_shows_a_best_rate_of_0(training):
    text = result_cards(read_platforms([str(training("all right", cer=(4, 0)))]), CONFIG)
    assert "<dt>best CER</dt><dd>0.00 %</dd>" in text
    assert "<dt>best WER</dt><dd>0.00 %</dd>" in text


SYSTEM = {
    "values": 93,
    "readers": 2,
    "buffer": 40,
    "batch": 24,
    "optimizer": "adadelta",
    "units": 30,
    "layers": [["93 values", "input"], ["convolution 11 / 2", "93 to 600"]],
}


def test_the_block_diagram_is_drawn_from_the_logs_own_description(training):
    settings = {"evaluation": "words+lm, width 64, all utterances"}
    about = {"name": "a <b>", "machine": MACHINE | {"storage": "ext4 on SSD"}, "system": SYSTEM}
    folder = training("drawn", devices=2, about=about | {"settings": settings})
    text = system_figure(*read_platforms([str(folder)]))
    for words in (
        "From audio to text on a &lt;b&gt;",
        "storage: ext4 on SSD",
        "processors: 2 x Some CPU, 4 cores",
        "devices: 2 x GPU, 8 GiB (PCIe 3 x16, PCIe 2 x1)",
        ">93 values per frame<",
        ">2 readers<",
        ">batches of 24<",
        ">2 copies of it<",
        ">adadelta<",
        ">search: words+lm<",
        ">width 64<",
        ">convolution 11 / 2<",
        ">93 to 600<",
    ):
        assert words in text
    wide, narrow = (ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text))
    for drawn in (wide, narrow):
        width, height = map(float, drawn.get("viewBox").split()[2:])
        boxes = [
            tuple(float(box.get(name)) for name in ("x", "y", "width", "height"))
            for box in drawn.iter("rect")
        ]
        assert len(boxes) == 4 + 5 + 3 + 2
        assert all(0 <= x <= x + w <= width + 0.1 and y + h <= height for x, y, w, h in boxes)
        apart = [
            x + w <= u + 0.1 or u + w <= x + 0.1 or y + h <= v or v + h <= y
            for (x, y, w, h), (u, v, *_) in combinations(boxes, 2)
        ]
        assert all(apart)


def test_parts_without_a_device_are_drawn_on_the_processors(training):
    about = {"machine": {"cpu": "Some CPU"}, "system": SYSTEM, "settings": {}}
    text = system_figure(*read_platforms([str(training("plain", about=about))]))
    assert "devices:" not in text
    assert "c1" not in re.findall(r"box-shape placed (c\d)", text)
    old = read_platforms([str(training("old", about={"machine": MACHINE}))])
    assert system_figure(*old) == ""
