"""The messages between a client and the server; docs/packages/serve.md describes them.

The server sends the format (`hello`). The client declares the format of its audio (`begin`), sends
samples as binary messages, and requests the last words (`end`). It gets `partial` and `final`
results, then `done`; or `error` at any time.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.config.fields import Positive, PositiveInt, Settings
from toolkit.decode.formats import plain_word
from toolkit.decode.stream import StreamResult
from toolkit.errors import ToolkitError
from toolkit.storage.reading import DAMAGE_ERRORS, quoted, reason, validated

POLICY, TOO_BIG, BUSY = 1008, 1009, 1013
"""Close codes of RFC 6455: against the rules, a message too big, try again later."""
LONGEST_REASON = 123
"""Maximum size in bytes of the reason in a close frame."""


class RefusedError(ToolkitError):
    """Raised when a client breaks the rules; the message is sent to the client.

    Args:
      message: why the client is refused.
      code: the close code.
    """

    def __init__(self, message: str, code: int = POLICY) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Limits(Settings):
    """Limits for a client; a client that exceeds one is refused. Times are in seconds."""

    clients: PositiveInt = 10
    """Maximum number of clients at the same time."""
    longest: Positive = 3600.0
    """Maximum length of a stream, both of its audio and in wall time."""
    frame_bytes: PositiveInt = 65536
    """Maximum size of a message in bytes; 2 s of audio at 16 kHz."""
    ahead: Positive = 5.0
    """Maximum time by which the audio may be ahead of real time since the connection began. A
    client that falls behind, such as after a network outage, may catch up at any speed."""
    idle: Positive = 30.0
    """Maximum time without a message, and maximum time for which results may stay unread."""


@dataclass(frozen=True)
class AudioFormat:
    """The only format of samples that a server takes."""

    rate: int
    """Sampling rate in Hz."""
    format: str = "s16le"
    """Sample format: 16 bits, signed, little-endian."""
    channels: int = 1
    """Number of channels: 1."""

    def __str__(self) -> str:
        return f"{self.format}, {self.rate} Hz, channels: {self.channels}"

    def check(self, message: str | bytes) -> None:
        """Check that a client's first message declares this format.

        Raises:
          RefusedError: the message declares another format or none.
        """
        declared = _of_type(message, "begin", {"rate": int, "format": str, "channels": int})
        client_format = AudioFormat(*(declared[name] for name in ("rate", "format", "channels")))
        if client_format != self:
            raise RefusedError(f"audio must be {self}, but is {quoted(str(client_format))}")


def check_end(message: str | bytes) -> None:
    """Check that a text message requests the end of the stream.

    Raises:
      RefusedError: the message is another one.
    """
    _of_type(message, "end", {})


def samples_of(message: bytes) -> int:
    """Return the number of samples in a message.

    Raises:
      RefusedError: the message ends within a sample.
    """
    if len(message) % 2:
        raise RefusedError(f"a message of {len(message)} bytes ends within a 16-bit sample")
    return len(message) // 2


def hello(audio: AudioFormat, system: str) -> str:
    """Return the server's first message."""
    return _message("hello", **asdict(audio), system=system)


def result_message(result: StreamResult) -> str:
    """Return the message of a partial or final result; times are rounded to milliseconds."""
    spoken = {"text": result.text, "start": round(result.start, 3), "end": round(result.end, 3)}
    if result.final is None:
        return _message("partial", **spoken)
    words = [plain_word(word) for word in result.final.words or ()]
    return _message("final", **spoken, words=words)


def done(seconds: float) -> str:
    """Return the last message, which says how many seconds of audio were recognised."""
    return _message("done", seconds=round(seconds, 3))


def error(message: str) -> str:
    """Return the message that says why the server ends the stream."""
    return _message("error", reason=message)


def close_reason(message: str) -> str:
    """Return as much of a reason as a close frame has room for."""
    return message.encode()[:LONGEST_REASON].decode(errors="ignore")


def _message(kind: str, **fields: Any) -> str:
    """Return a message of a type with its fields as JSON."""
    return json.dumps({"type": kind, **fields}, ensure_ascii=False)


def _of_type(message: str | bytes, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Parse a text message, and check its type and fields."""
    if isinstance(message, bytes):
        raise RefusedError(f'samples came before the message of type "{kind}"')
    try:
        content = validated(json.loads(message), {"type": str, **schema}, "the message")
    except DAMAGE_ERRORS as cause:
        raise RefusedError(f'not a valid message of type "{kind}": {reason(cause)}') from cause
    if content["type"] != kind:
        raise RefusedError(f'expected a message of type "{kind}", not {quoted(content["type"])}')
    return content
