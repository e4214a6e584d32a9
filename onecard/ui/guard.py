"""Who may ask: decided by address, headers and token, before anything is read."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.datastructures import Headers

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {  # of every answer: nothing is loaded from elsewhere, and no script or style stands in a page itself
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The rules for one address. Beyond loopback everybody on the network can ask, so a token is needed."""

    host: str  # as typed
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def needs_token(self) -> bool:
        return not is_loopback(self.host)

    @property
    def link(self) -> str:
        """What to open."""
        anywhere = self.host in ("0.0.0.0", "::")
        host = socket.gethostname() if anywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.needs_token else "")

    @property
    def cookie(self) -> str:
        """The name of the cookie: cookies of one machine are shared by its ports."""
        return f"onecard_{self.port}"

    def refusal(self, headers: Headers) -> str:
        """Why a request is refused for where it comes from; "" where it is not."""
        host = headers.get("Host", "")
        if len(headers.getlist("Host")) != 1 or not self._is_own(host):
            return "the Host header is not this server's: another name may have been pointed at this machine"
        origin = headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            return "the request comes from another page"
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not _navigates(headers):
            return "the request comes from another page"
        return ""

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this server: never by a name that somebody else's DNS could give."""
        name, _, port = host.rpartition(":")
        if port != str(self.port):
            return False
        if not self.needs_token:
            return name.lower() in (*LOOPBACK, self.host)
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.lower() in ("localhost", self.host.lower(), socket.gethostname().lower())
        return True

    def is_token(self, said: str | None) -> bool:
        return said is not None and hmac.compare_digest(said.encode(), self.token.encode())

    def is_known(self, headers: Headers) -> bool:
        """Whether a request has the cookie, where one is needed."""
        if not self.needs_token:
            return True
        cookies = (part.strip().partition("=") for part in headers.get("Cookie", "").split(";"))
        return any(name == self.cookie and self.is_token(value) for name, _, value in cookies)


def _navigates(headers: Headers) -> bool:
    """Whether a person follows a link: the page that has it learns nothing of what opens."""
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
