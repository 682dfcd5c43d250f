"""Who may ask, and what a browser may do with the answers: checks and headers of every response.

A page of another site may not use the server: its host name, pointed at this machine (DNS
rebinding), is refused, and so is its Origin; it cannot send JSON without one. Scripts and styles
come from the server only.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plan3d.simulator.base.documents import SCHEMA

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every response."""
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::\d{1,5})?", re.ASCII)
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def error(status: int, line: str, headers: Mapping[str, str] | None = None) -> Response:
    """A response of one line."""
    content = json.dumps({"schema": SCHEMA, "error": line})
    return Response(content, status, headers, "application/json")


def host_names(host: str) -> frozenset[str]:
    """The names under which a server may be asked: of this machine, unless it listens to itself
    only."""
    if host in LOCAL:
        return LOCAL
    return LOCAL | {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}


class Guarded:
    """An application behind the checks; `host` is where it listens."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.names = host_names(host)
        self.takes_addresses = host not in LOCAL
        """An address in place of a name cannot be another site's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refusal(Headers(scope=scope))
        await (refused or self.app)(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_name(hosts[0]):
            shown = ", ".join(hosts)[:60]
            return error(421, f"host {shown!r} is not a name of this server; ask localhost")
        origin = headers.get("origin", "")
        if origin and origin.partition("://")[2] != hosts[0]:
            return error(403, f"origin {origin[:60]!r}: pages of other sites may not ask")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return error(403, "pages of other sites may not ask")
        return None

    def _is_name(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if not match:
            return False
        name = match["name"].strip("[]").lower()
        if name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.takes_addresses
