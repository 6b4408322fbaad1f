"""The page's small server: its own files, and JSON in and out.

It answers this machine and its own page, nobody else: another site's page must not be able to use
it through the browser of someone who has it open. So a request must name this host (a foreign name
that resolves to 127.0.0.1 does not), must not come from another origin, and must send JSON. Nothing
is read from disk after the start, so no path leads outside the page's files.

One story is computed at a time; the others wait. The models are small, and a second thread would
make both slower.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from anyio import Lock, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chacal._plain import to_plain
from chacal.play.about import about
from chacal.play.player import Player
from chacal.play.questions import ASKED, answer, page_files

MOST_BYTES = 16_384
"""Of a request's body."""

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

HEADERS = [
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; "
     b"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
     b"frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
]  # fmt: skip


def make_app(hosts: tuple[str, ...], player: Player | None = None) -> Starlette:
    """The application.

    Args:
        hosts: names by which it may be called; "*" for any.
        player: who answers; a new one unless given.
    """
    player = player or Player()
    files = page_files()
    turns = Turns()

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        data = files.get(name)
        if data is None:
            return _json({"error": f"there is no page {name!r}"}, 404)
        kind = TYPES.get(name[name.rfind(".") :], "application/octet-stream")
        return Response(data, media_type=kind)

    async def facts(request: Request) -> Response:
        return _json(to_plain(about(player)))

    async def ask(request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in ASKED:
            return _json({"error": f"{kind!r} cannot be asked; expected one of {list(ASKED)}"}, 404)
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            return _json({"error": "expected a body of application/json"}, 415)
        try:
            body = await _body(request)
        except ClientDisconnect:
            return Response(status_code=400)
        if body is None:
            return _json(
                {"error": f"the body is too long; expected {MOST_BYTES} bytes or less"}, 413
            )
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            return _json({"error": "the body is not JSON"}, 400)
        try:
            async with turns.of(kind == "story"):
                found = await to_thread.run_sync(answer, player, kind, asked)
        except ValueError as error:
            return _json({"error": str(error)}, 400)
        return _json(found)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/page/{name}", page),
            Route("/api/about", facts),
            Route("/api/{kind}", ask, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, hosts), Middleware(GZipMiddleware, 1000)],
    )


class Turns:
    """One question at a time; boxes first: someone who types waits for them, then for the rest."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.first = 0

    @asynccontextmanager
    async def of(self, first: bool) -> AsyncIterator[None]:
        """A turn, before those that are not first."""
        self.first += first
        try:
            await self.lock.acquire()
        finally:
            self.first -= first
        while self.first and not first:  # the lock is fair: whoever asks again is last
            self.lock.release()
            await self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()


class Guard:
    """Refuses what does not come from this page, and says what browsers may do with it."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        refusal = self._refusal(Request(scope))
        to: Callable[..., Awaitable[None]] = self.app if refusal is None else _json(*refusal)
        await to(scope, receive, with_headers)

    def _refusal(self, request: Request) -> tuple[Any, int] | None:
        host = request.headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if "*" not in self.hosts and name not in self.hosts:
            return {"error": f"host is {host!r}; expected {' or '.join(self.hosts)}"}, 421
        origin = request.headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return {"error": f"origin is {origin!r}; expected this page's own"}, 403
        site = request.headers.get("sec-fetch-site", "none")
        # a link on another site may lead to the page, and to nothing else
        if site not in ("same-origin", "none") and request.url.path != "/":
            return {"error": "the request comes from another site; expected this page's own"}, 403
        return None


async def _body(request: Request) -> bytes | None:
    """The body, or None once it is longer than allowed."""
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > MOST_BYTES:
            return None
    return found


def _json(value: Any, status: int = 200) -> Response:
    # ASCII: half a surrogate pair, which JSON may carry, cannot be written as UTF-8
    return Response(json.dumps(value), status, media_type="application/json")
