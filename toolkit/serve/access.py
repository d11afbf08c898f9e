"""Who may connect: pages that this server has delivered, and programs of one's own.

A page of another site can make the browser connect to this server. Its address is then in the
header `Origin`, or, where a name server has given that site's name the address of this machine (DNS
rebinding), in `Host`.
"""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

LOCAL = "localhost"


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    address = _address(host)
    return host == LOCAL if address is None else address.is_loopback


def refusal(hosts: Sequence[str], origins: Sequence[str], served: str) -> str | None:
    """Return why a request is refused; None if it is not.

    `Host` must be an address, which no name server can redirect, `localhost` or the name that is
    served; any port, since it may be forwarded. `Origin` must be that host. Programs send none; all
    browsers do when they open a WebSocket.

    Args:
      hosts: all headers `Host` of the request.
      origins: all headers `Origin`.
      served: the address that the server listens on.
    """
    name = _hostname(hosts[0]) if len(hosts) == 1 else None
    if name is None:
        return "the request needs one valid header Host"
    if name not in (LOCAL, served.lower()) and _address(name) is None:
        return "the header Host names another server: open the page by address or as localhost"
    if any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in origins):
        return "the header Origin names another site: its pages may not use this server"
    return None


def _hostname(host: str) -> str | None:
    """The name or address in a header `Host`, in lower case, without port and brackets."""
    try:
        parts = urlsplit(f"//{host}")
        valid = parts.netloc == host and "@" not in host and parts.port != 0
        return parts.hostname if valid else None
    except ValueError:
        return None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
