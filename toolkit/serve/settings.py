"""Settings of `toolkit serve`: where it listens, and what it takes from a client."""

from dataclasses import dataclass, field

PIECE = 0.1
"""Seconds of audio that are recognised at a time, as by `toolkit transcribe --stream`."""


@dataclass(frozen=True)
class Limits:
    """What a client may do before it is refused; times in seconds."""

    clients: int = 10
    """Clients at once."""
    longest: float = 3600.0
    """Length of a stream, of its audio and of its time on the clock."""
    frame_bytes: int = 65536
    """Size of a message; 2 s of audio at 16 kHz."""
    ahead: float = 5.0
    """Audio ahead of real time, counted from the connection on. A client that is late, as after a
    pause of the network, may catch up at any speed."""
    idle: float = 30.0
    """Time without a message, and longest time in which a client may leave results unread."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} is {value}, needs to be positive")


@dataclass(frozen=True)
class ServeConfig:
    """Settings of the server."""

    host: str = "127.0.0.1"
    """Address to listen on. There is no authentication: an address that others can reach lets them
    all in."""
    port: int = 8000
    """TCP port; 0: any that is free."""
    threads: int = 2
    """Threads that recognise; streams wait in line for them."""
    limits: Limits = field(default_factory=Limits)
    """What a client may do."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}, needs to be 0 to 65535")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}, needs to be 1 or more")
