"""Live recognition by a server: latency with several clients at once."""

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import click

from benchmarks.run import BenchmarkError
from toolkit.config.click_types import FILE

MESSAGE = 0.1
"""Seconds of audio in a message, as the page sends them."""
START = "from toolkit.cli import main; main()"


@dataclass(frozen=True)
class Conversation:
    """Result and delays of one client, in seconds."""

    text: str
    """The final words."""
    lags: tuple[float, ...]
    """Seconds from sending each message of audio to receiving its result."""
    last: float
    """Seconds from the end of the audio to the final words."""


@click.command("serve")
@click.option("--model", type=FILE, required=True, help="Model bundle that recognises streams.")
@click.option(
    "--clients", type=click.IntRange(1), default=10, show_default=True, help="Number of clients."
)
@click.option(
    "--threads", type=click.IntRange(1), help="Recognition threads. Default: one per processor."
)
@click.argument("audio", nargs=-1, required=True, type=FILE)
def command(model: Path, clients: int, threads: int | None, audio: tuple[Path, ...]) -> None:
    """Measure the latency of `toolkit serve`.

    The server runs in a separate process. All clients send the AUDIO files simultaneously and in
    real time, one file after another without a pause.

    \b
    Example:
      python -m benchmarks serve --model exp/demo/final --clients 10 a.wav b.wav
    """
    import psutil

    from toolkit.environment import usable_cpus

    with _server(model, clients, threads) as (address, process):
        busy_before = _busy(psutil.Process(process.pid))
        conversations, seconds = measure(address, audio, clients)
        busy = _busy(psutil.Process(process.pid)) - busy_before
    click.echo(summary(conversations))
    click.echo(
        f"{seconds:.0f} s of audio for each of {clients} clients on {usable_cpus()} processors:"
        f" {busy / (seconds * clients):.3f} s of processor time per second of audio"
    )


def measure(address: str, audio: Sequence[Path], clients: int) -> tuple[list[Conversation], float]:
    """Measure a server's delays while several clients stream audio at the same time.

    Args:
      address: address of the server's page.
      audio: the audio files that each client sends, one after another.
      clients: number of clients.

    Returns:
      The conversation of each client, and the seconds of audio that each has sent.

    Raises:
      BenchmarkError: a client was refused.
    """
    from websockets.sync.client import connect

    from toolkit.features.audio import load_audio

    stream = f"{address.replace('http', 'ws', 1)}stream"
    with connect(stream, proxy=None) as connection:
        rate = json.loads(connection.recv())["rate"]
    scaled = ((32768 * load_audio(path, rate)).round().clamp(-32768, 32767) for path in audio)
    samples = b"".join(part.numpy().astype("<i2").tobytes() for part in scaled)
    seconds = len(samples) / 2 / rate

    async def together() -> list[Conversation]:
        return await asyncio.gather(*(_talk(stream, samples, rate) for _ in range(clients)))

    return asyncio.run(together()), seconds


async def _talk(stream: str, samples: bytes, rate: int) -> Conversation:
    """Stream audio to the server at real-time speed; return the words and delays."""
    from websockets.asyncio.client import connect

    size = 2 * round(MESSAGE * rate)
    async with connect(stream, compression=None, ping_interval=None, proxy=None) as connection:
        await connection.recv()
        begin = {"type": "begin", "rate": rate, "format": "s16le", "channels": 1}
        await connection.send(json.dumps(begin))
        start, sent = monotonic(), []

        async def send() -> None:
            for number, place in enumerate(range(0, len(samples), size), 1):
                await asyncio.sleep(start + number * MESSAGE - monotonic())
                sent.append(monotonic())
                await connection.send(samples[place : place + size])
            sent.append(monotonic())
            await connection.send(json.dumps({"type": "end"}))

        sending = asyncio.create_task(send())
        words, lags = [], []
        async for message in connection:
            result, now = json.loads(message), monotonic()
            if result["type"] == "error":
                raise BenchmarkError(result["reason"])
            if result["type"] == "done":
                break
            if len(lags) < len(samples) // size:
                lags.append(now - sent[len(lags)])  # one result per message
            if result["type"] == "final":
                words.append(result["text"])
        await sending
        return Conversation(" ".join(" ".join(words).split()), tuple(lags), monotonic() - sent[-1])


def summary(conversations: Sequence[Conversation]) -> str:
    """Return latencies in milliseconds, and whether all clients got the same words."""
    lags = sorted(1000 * lag for conversation in conversations for lag in conversation.lags)
    lasts = sorted(1000 * conversation.last for conversation in conversations)
    texts = {conversation.text for conversation in conversations}
    agree = "the same for all" if len(texts) == 1 else f"{len(texts)} different texts"
    return (
        f"delay of a message's result: median {statistics.median(lags):.0f} ms, 99 % within"
        f" {lags[int(0.99 * (len(lags) - 1))]:.0f} ms, at most {lags[-1]:.0f} ms\n"
        f"delay of the last words: median {statistics.median(lasts):.0f} ms, at most"
        f" {lasts[-1]:.0f} ms\n"
        f"{len(conversations[0].text.split())} words, {agree}"
    )


@contextmanager
def _server(
    model: Path, clients: int, threads: int | None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a server inside the `with` block; yields its address and process."""
    command = [sys.executable, "-c", START, "serve", "--port", "0", "--clients"]
    command += [str(clients + 1)]  # one more requests the sampling rate
    command += [] if threads is None else ["--threads", str(threads)]
    with subprocess.Popen([*command, str(model)], stderr=subprocess.PIPE, text=True) as process:
        try:
            results = []
            for line in process.stderr:
                results.append(line)
                if line.startswith("open http://"):
                    break
            else:
                raise BenchmarkError(f"the server did not start: {''.join(results)}")
            yield line.split()[1].rstrip(";"), process
        finally:
            process.terminate()
            process.communicate()


def _busy(process: Any) -> float:  # psutil's, which is imported late
    """Return the CPU time that a process has used, in seconds."""
    times = process.cpu_times()
    return times.user + times.system
