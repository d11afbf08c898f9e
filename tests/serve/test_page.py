"""The page in a browser; skipped without Chromium."""

import base64
import io
import json
import re
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
import soundfile

pytest.importorskip("websockets", minversion="16")

from websockets.sync.client import connect

from tests.browser import COMMAND, needs_browser
from tests.serve.talking import Tones, serving, tones
from toolkit.serve.server import FOLDER, TYPES


def test_the_page_loads_nothing_from_elsewhere():
    names = {name for name, _ in TYPES.values()}
    assert names == {path.name for path in FOLDER.iterdir()}
    for name in names:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|@import|url\(|innerHTML|\beval\b|\son\w+=", text), name
        if name.endswith("html"):
            loaded = set(re.findall(r'(?:src|href)="([^"]+)"', text))
            assert loaded == {"data:,", "page.css", "page.js"}


class Tab:
    """A tab of the browser, driven by its debugging protocol."""

    def __init__(self, connection):
        self._connection, self._number, self._session, self.faults = connection, 0, {}, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.call("Page.enable")
        self.call("Runtime.enable")

    def _read(self):
        message = json.loads(self._connection.recv())
        if message.get("method") == "Runtime.exceptionThrown":
            self.faults.append(message["params"]["exceptionDetails"])
        return message

    def call(self, method, **parameters):
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters, **self._session}
        self._connection.send(json.dumps(request))
        while (message := self._read()).get("id") != self._number:
            pass
        assert "error" not in message, message
        return message["result"]

    def open(self, address):
        self.call("Page.navigate", url=address)
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def run(self, script):
        """Return the value of an expression once its promise is resolved."""
        evaluation = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in evaluation, evaluation
        return evaluation["result"].get("value")


@contextmanager
def browser(folder, *options):
    """A tab of a browser without a window; skips where the browser does not start."""
    command = [*COMMAND, "--no-first-run", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
    command += [
        "--mute-audio",
        "--autoplay-policy=no-user-gesture-required",
        f"--user-data-dir={folder}",
        *options,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if match := re.search(r"DevTools listening on (ws://\S+)", line):
                    break
            else:
                pytest.skip("chromium does not start here")
            with connect(match[1], max_size=None, ping_interval=None) as connection:
                yield Tab(connection)
        finally:
            process.kill()


CLOCK = """Promise.race([new AudioContext().resume().then(() => true),
  new Promise(resolve => setTimeout(() => resolve(false), 20000))])"""
WATCH = """
window.shown = new Set();
window.recognised = (count, action) => new Promise((resolve, reject) => {
  const texts = () =>
    [...document.querySelectorAll("#finals li > span")].map(e => e.innerText.trim());
  const status = document.getElementById("status");
  const look = () => {
    shown.add(document.getElementById("partial").innerText);
    if (status.classList.contains("fault")) reject(new Error(status.innerText));
    if (count(texts(), status.innerText)) { observer.disconnect(); resolve(texts()); }
  };
  const observer = new MutationObserver(look);
  observer.observe(document.body, {childList: true, subtree: true, characterData: true});
  action();
});
"""


@needs_browser
def test_a_microphone_and_a_file_are_recognised_in_a_browser(tmp_path):
    soundfile.write(tmp_path / "microphone.wav", tones(500, 2000, rate=48000), 48000)
    file = io.BytesIO()
    soundfile.write(file, tones(700, 1500, rate=44100), 44100, format="wav")
    encoded = base64.b64encode(file.getvalue()).decode()
    fake = f"--use-file-for-fake-audio-capture={tmp_path / 'microphone.wav'}"
    options = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", fake]
    with serving(Tones()) as address, browser(tmp_path / "profile", *options) as tab:
        tab.open(address)
        if not tab.run(CLOCK):
            pytest.skip("no audio clock in this browser")
        tab.run(WATCH)
        texts = tab.run(
            "recognised(texts => texts.includes('500') && texts.includes('2000'),"
            " () => document.getElementById('start').click())"
        )
        assert {"500", "2000"} <= set(texts)
        assert "tone" in tab.run("[...shown]")
        tab.run(
            "recognised((_, status) => / s recognised/.test(status),"
            " () => document.getElementById('stop').click())"
        )
        num_finals = tab.run("document.querySelectorAll('#finals li > span').length")
        texts = tab.run(
            "recognised((_, status) => / s recognised/.test(status), () => {"
            " document.getElementById('status').textContent = '';"
            f" const bytes = Uint8Array.from(atob('{encoded}'), c => c.charCodeAt(0));"
            " const chosen = new DataTransfer();"
            " chosen.items.add(new File([bytes], '<b>file</b>.wav'));"
            " const input = document.getElementById('file');"
            " input.files = chosen.files;"
            " input.dispatchEvent(new Event('change')); })"
        )
        assert texts[num_finals:] == ["700", "1500"]
        names = tab.run("[...document.querySelectorAll('.source')].map(e => e.innerText)")
        assert names == ["Microphone", "<b>file</b>.wav"]
        time = tab.run("[...document.querySelectorAll('time')].at(-2).innerText")
        assert re.fullmatch(r"0:00\.0 – 0:01\.\d", time)
        lines = tab.run("lines")
        assert re.fullmatch(r"0\.00\t1\.\d\d\t700", lines[-2])
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=400, height=800, deviceScaleFactor=1, mobile=True,
        )  # fmt: skip
        assert tab.run("document.documentElement.scrollWidth") <= 400
        assert tab.faults == []


@needs_browser
def test_the_page_resamples(tmp_path):
    script = (FOLDER / "recorder.js").read_text(encoding="utf-8")
    expected = tones(700, 3000) / 32768
    inside = slice(100, -100)
    with browser(tmp_path) as tab:
        tab.run(f"AudioWorkletProcessor = Object; registerProcessor = () => {{}}; {script}")
        for rate in (8000, 16000, 44100, 48000):
            samples = (tones(700, 3000, rate=rate) / 32768).tolist()
            resampled = tab.run(
                f"(() => {{ const resampler = new Resampler({rate}, 16000), found = [];"
                f" const samples = {samples};"
                " for (let i = 0; i < samples.length; i += 128)"
                "   found.push(...resampler.push(Float32Array.from(samples.slice(i, i + 128))));"
                " return found.concat(resampler.finish()); })()"
            )
            assert len(resampled) == pytest.approx(len(expected), abs=2)
            resampled = np.array(resampled)[: len(expected)]
            difference = resampled[inside] - expected[: len(resampled)][inside]
            assert np.sqrt(np.mean(difference**2)) < 0.01, rate
