"""The command `toolkit serve`."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("websockets", minversion="16")

from websockets.sync.client import connect

from tests.decode.conftest import Recogniser as Words
from tests.decode.conftest import make_bundle
from tests.serve.talking import Tones
from toolkit.cli import main
from toolkit.decode.bundle import BundledSystem, Card, write_card, write_systems
from toolkit.decode.config import EndpointConfig
from toolkit.serve.server import ServeConfig, Server, run

PROJECT = Path(__file__).resolve().parents[2]
START = "from toolkit.cli import main; main()"

CARD = Card("lstm", "LSTM on log-mel features", 2, 0.1, 3, "synthetic", "2gram", {"dev": 2.0})


@pytest.fixture(scope="module")
def final(tmp_path_factory):
    """The folder of a run whose best system cannot stream."""
    folder = tmp_path_factory.mktemp("serve")
    words = Words(folder)
    make_bundle(words, folder / "final/lstm")
    make_bundle(words, folder / "final/blstm", kind="blstm")
    systems = [
        BundledSystem("blstm", "2gram", False, {"dev": 1.0}, ("speaker_known", "speaker_unknown")),
        BundledSystem("lstm", "2gram", True, {"dev": 2.0}, ("stream",)),
    ]
    write_systems(folder / "final", systems)
    write_card(folder / "final/lstm", CARD)
    return folder / "final"


@pytest.mark.long
def test_it_ends_cleanly_by_sigterm_while_a_client_speaks(final):
    command = [sys.executable, "-c", START, "serve", "--port", "0", str(final)]
    options = {"cwd": PROJECT, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **options) as process:
        assert process.stderr.readline() == f"{CARD}\n"
        address = process.stderr.readline().split()[1].rstrip(";")
        with connect(f"{address.replace('http', 'ws')}stream") as connection:
            hello = json.loads(connection.recv())
            assert (hello["rate"], hello["system"]) == (16000, str(CARD))
            begin = {"type": "begin", "rate": 16000, "format": "s16le", "channels": 1}
            connection.send(json.dumps(begin))
            connection.send(bytes(3200))
            assert json.loads(connection.recv())["type"] == "partial"
            process.terminate()
            assert list(connection) == []
            assert connection.close_code == 1001
        log = process.stderr.read()
    assert process.returncode == 0
    assert log.splitlines()[-1] == "the server has stopped"
    assert "Traceback" not in log
    assert "0.1 s of audio, disconnected" in log


def test_it_ends_cleanly_by_ctrl_c():
    lines = []

    def report(line):
        lines.append(line)
        if line.startswith("open "):
            signal.raise_signal(signal.SIGINT)

    config = ServeConfig(port=0)
    run(Server(Tones(), EndpointConfig(), "tones", config, report), report)
    assert lines[-1] == "the server has stopped"


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("blstm", "streaming needs a unidirectional LSTM or a TDNN-F on log-mel features"),
        ("gmm", "has no system 'gmm', only blstm, lstm"),
    ],
)
def test_systems_that_cannot_stream_are_refused(final, system, message):
    result = CliRunner().invoke(main, ["serve", "--port", "0", "--system", system, str(final)])
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_bundle_of_another_kind_is_refused(final):
    result = CliRunner().invoke(main, ["serve", "--port", "0", str(final / "blstm")])
    assert result.exit_code == 1
    assert "needs a unidirectional LSTM or a TDNN-F" in result.stderr


def test_unusable_ports_and_addresses_are_named(final, monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = CliRunner().invoke(main, ["serve", "--port", port, str(final)])
        assert result.exit_code == 1
        assert f"127.0.0.1, port {port}: " in result.stderr
        assert "Warning" not in result.stderr
    result = CliRunner().invoke(main, ["serve", "--host", "203.0.113.1", str(final)])
    assert result.exit_code == 1
    assert "Warning: other machines can reach 203.0.113.1" in result.stderr
    assert "no authentication" in result.stderr
    result = CliRunner().invoke(main, ["serve", "--host", "127.0..1", str(final)])
    assert result.exit_code == 1
    assert "'127.0..1' is not an address: " in result.stderr


def test_a_missing_library_is_named_with_the_command(final, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "websockets"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "toolkit.serve.server", raising=False)
    monkeypatch.setitem(sys.modules, "websockets", None)
    result = CliRunner().invoke(main, ["serve", str(final)])
    assert result.exit_code == 1
    assert "pip install 'websockets>=16'" in result.stderr
