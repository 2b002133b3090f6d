"""The studio's server: loopback only, for the browser of the person who started it and for nobody else."""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pipecycle.errors import InputError, own_code, sentence, shown
from pipecycle.files import reason
from pipecycle.runs.config import Config
from pipecycle.studio.desk import Desk, PlanningError
from pipecycle.studio.page import page
from pipecycle.studio.planner import Superseded, message
from pipecycle.studio.settings import Offer, config_of, link_of
from pipecycle.studio.training import TrainingProcess

HOST = "127.0.0.1"
PORT = 8410
"""Tried first, so that links last; any free one if it is taken."""
MOST_BODY = 1 << 16
MOST_CONNECTIONS = 64
TOKEN = "X-Studio-Token"

Folder = Callable[[Config], Path]
"""Where a run of a configuration belongs."""


class Studio(ThreadingHTTPServer):
    """Serves one page; `address` is where, with the token that opens it."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, offer: Offer, link: str, folder: Folder, port: int | None = None) -> None:
        self.offer, self.link, self.folder = offer, link, folder
        self.token = secrets.token_urlsafe(24)
        self.desk, self.training = Desk(), TrainingProcess()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((HOST, PORT if port is None else port), Handler)
        except OSError as error:
            if port is not None:
                raise InputError(f"port = {port}: cannot be used ({reason(error)})") from None
            super().__init__((HOST, 0), Handler)
        self.desk.open()
        self.port = int(self.server_address[1])
        self.hosts = {f"{HOST}:{self.port}", f"localhost:{self.port}"}
        self.cookie = f"pipecycle-studio-{self.port}"

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def server_close(self) -> None:
        super().server_close()
        self.desk.close()
        self.training.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Refused(Exception):
    """A request that is not from our page."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Studio
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "pipecycle", ""
    disable_nagle_algorithm = True
    timeout = 60

    def do_GET(self) -> None:
        try:
            path = urlsplit(self.path)
            self._trusted()
            if path.path == "/api/train":
                self._own()
                self._json(self.server.training.state())
            elif path.path != "/":
                self._text(HTTPStatus.NOT_FOUND, f"{shown(path.path)}: there is only /")
            elif path.query:
                self._enter(parse_qs(path.query).get("token", [""])[0])
            else:
                self._page()
        except Refused as refused:
            self._text(HTTPStatus.FORBIDDEN, str(refused))
        except ValueError as error:
            self._text(HTTPStatus.BAD_REQUEST, f"{shown(self.path)}: is not an address ({error})")

    def do_POST(self) -> None:
        actions = {
            "/api/plan": self._plan,
            "/api/export": self._export,
            "/api/train": self._train,
            "/api/stop": self._stop,
        }
        try:
            self._trusted()
            self._own()
            body = self._body()
            if self.path not in actions:
                raise InputError(f"{shown(self.path)}: needs one of {', '.join(actions)}")
            actions[self.path](body)
        except Refused as refused:
            self._text(HTTPStatus.FORBIDDEN, str(refused))
        except Superseded:
            self._json({"superseded": True}, HTTPStatus.CONFLICT)
        except (Exception, SystemExit) as error:  # a user's policy may do anything
            if isinstance(error, OSError) and not error.filename:
                raise  # nobody reads the answer
            if isinstance(error, InputError) or own_code(error) is not None:
                self._json({"error": sentence(error)}, HTTPStatus.BAD_REQUEST)
                return
            if not isinstance(error, PlanningError):  # it has been printed
                traceback.print_exc()
            ours = (
                f"an error in pipecycle itself ({sentence(error)}); the terminal shows the details, please report them"
            )
            self._json({"error": ours}, HTTPStatus.INTERNAL_SERVER_ERROR)

    # Who asks.

    def _trusted(self) -> None:
        """By our own name, so that no name server can point another page's name here; and from our own page."""
        if self.headers.get("Host", "") not in self.server.hosts:
            raise Refused("this studio answers to its own address only")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.server.hosts}:
            raise Refused("this studio answers to its own page only")

    def _own(self) -> None:
        """A header that only our page can send: it holds the token, and no other page may send such headers here."""
        if not self._is_token(self.headers.get(TOKEN, "")):
            raise Refused("this studio needs its token: open the address that its command has printed")

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode())

    def _enter(self, token: str) -> None:
        """The token leaves the address, so that addresses can be shared, and stays in a cookie."""
        if not self._is_token(token):
            raise Refused("this is not the studio's token: open the address that its command has printed")
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Set-Cookie", f"{self.server.cookie}={token}; HttpOnly; SameSite=Lax; Path=/")
        self._finish(b"", {"Location": "/"})

    def _page(self) -> None:
        try:
            kept = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            kept = None
        if kept is None or not self._is_token(kept.value):
            raise Refused("this studio needs its token: open the address that its command has printed, then this one")
        text, allowed = page(self.server.offer, self.server.link, token=self.server.token)
        self.send_response(HTTPStatus.OK)
        self._finish(text.encode(), {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": allowed})

    # What is asked for.

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BODY:
            self.close_connection = True
            raise InputError(f"a request of {shown(length) or 'unknown'} bytes: needs at most {MOST_BODY:,}")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise InputError("the request is not JSON") from None
        if not isinstance(body, dict):
            raise InputError("the request is not a table of values")
        return body

    def _configs(self, body: dict[str, Any]) -> list[Config]:
        sides = body.get("sides")
        if not isinstance(sides, list) or not 1 <= len(sides) <= 2:
            raise InputError("sides: needs one or two schedulers")
        return [config_of(values, self.server.offer) for values in sides]

    def _plan(self, body: dict[str, Any]) -> None:
        who, side, number = body.get("page"), body.get("side"), body.get("number")
        if not isinstance(who, str) or len(who) > 64 or side not in ("a", "b") or type(number) is not int:
            raise InputError("a plan: needs a page, a side (a or b) and a number")
        config = config_of(body.get("values"), self.server.offer)
        self._bytes(self.server.desk.ask(who, side, number, config), "application/octet-stream")

    def _export(self, body: dict[str, Any]) -> None:
        configs = self._configs(body)
        view = body.get("view", {})
        if not isinstance(view, dict) or not all(isinstance(value, int | float | str) for value in view.values()):
            raise InputError("view: needs a table of numbers and words")
        text = export(self.server.offer, configs, self.server.desk, self.server.training, view)
        self._bytes(text.encode(), "text/html; charset=utf-8")

    def _train(self, body: dict[str, Any]) -> None:
        self.server.training.start({self.server.folder(config): config for config in self._configs(body)})
        self._json(self.server.training.state())

    def _stop(self, body: dict[str, Any]) -> None:
        self.server.training.stop()
        self._json(self.server.training.state())

    # Answers.

    def _json(self, values: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._bytes(json.dumps(values).encode(), "application/json", status)

    def _text(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True  # what else was sent has not been read
        self._bytes(f"pipecycle: {text}\n".encode(), "text/plain; charset=utf-8", status)

    def _bytes(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self._finish(body, {"Content-Type": kind})

    def _finish(self, body: bytes, headers: dict[str, str]) -> None:
        headers |= {
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's."""


def export(
    offer: Offer,
    configs: list[Config],
    desk: Desk | None = None,
    training: TrainingProcess | None = None,
    view: Mapping[str, Any] | None = None,
) -> str:
    """The page with its plans inside, which opens from disk."""
    curves = []
    for config in configs:
        points = training.points(config) if training is not None else []
        if points:
            curves.append({"policy": config.policy, "toml": config.text(), "points": points})
    plans = [message(config) if desk is None else desk.message(config) for config in configs]
    return page(offer, link_of(configs, view), plans=plans, curves=curves)[0]
