"""Settings of the server of live recognition."""

from dataclasses import dataclass, field
from typing import Annotated

from toolkit.config.fields import Positive, PositiveInt, Range, Settings


@dataclass(frozen=True)
class Limits(Settings):
    """What a client may do before it is refused; times in seconds."""

    clients: PositiveInt = 10
    """Number of clients at the same time."""
    longest: Positive = 3600.0
    """Length of a stream, of its audio and of its time on the clock."""
    frame_bytes: PositiveInt = 65536
    """Size of a message; 2 s of audio at 16 kHz."""
    ahead: Positive = 5.0
    """How far the audio may be ahead of real time, counted from the connection on. A client that is
    late, such as after a pause of the network, may catch up at any speed."""
    idle: Positive = 30.0
    """Time without a message, and longest time in which a client may leave results unread."""


@dataclass(frozen=True)
class ServeConfig(Settings):
    """Settings of the server."""

    host: str = "127.0.0.1"
    """Address to listen on. There is no authentication: whoever can reach it can use the server."""
    port: Annotated[int, Range(0, 65535)] = 8000
    """TCP port; 0: any that is free."""
    threads: PositiveInt = 2
    """Threads that recognise; streams wait in line for them."""
    limits: Limits = field(default_factory=Limits)
    """What a client may do."""
