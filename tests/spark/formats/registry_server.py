"""A schema registry for tests: the documented REST paths over real HTTP, and faults on demand."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class RegistryServer:
    """Schemas by id and by subject; what was asked is in `asked`."""

    def __init__(self, *, user: str | None = None) -> None:
        self.asked: list[str] = []
        self.failing = 0
        """How many of the next requests are answered with 503."""
        self.serialized: dict[int, bytes] = {}
        """Descriptors for `format=serialized`, by schema id."""
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._user = user
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def add(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: list[tuple[str, str, int]] | None = None,
    ) -> int:
        """Registers a schema and returns its id."""
        number = len(self._schemas) + 1
        schema: dict[str, Any] = {"schema": text}
        if kind != "AVRO":  # the registry leaves out its default
            schema["schemaType"] = kind
        if references:
            schema["references"] = [
                {"name": name, "subject": other, "version": version}
                for name, other, version in references
            ]
        self._schemas[number] = schema
        self._subjects.setdefault(subject, []).append(number)
        return number

    @contextmanager
    def running(self) -> Iterator[RegistryServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def answer(self, method: str, target: str, authorization: str, body: bytes) -> tuple[int, Any]:
        self.asked.append(f"{method} {target}")
        if self.failing:
            self.failing -= 1
            return 503, {"error_code": 50301, "message": "busy"}
        if (
            self._user
            and authorization != "Basic " + base64.b64encode(self._user.encode()).decode()
        ):
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        parts = urlsplit(target)
        query = parse_qs(parts.query)
        match [unquote(part) for part in parts.path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                return self._by_id(int(number), query.get("format", [""])[0])
            case ["subjects", subject, "versions", version]:
                return self._by_version(subject, version)
            case ["subjects", subject] if method == "POST":
                return self._lookup(subject, json.loads(body))
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _by_id(self, number: int, form: str) -> tuple[int, Any]:
        if number not in self._schemas:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if form == "serialized":
            encoded = base64.b64encode(self.serialized[number]).decode()
            return 200, {**self._schemas[number], "schema": encoded}
        return 200, self._schemas[number]

    def _by_version(self, subject: str, version: str) -> tuple[int, Any]:
        if subject not in self._subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        numbers = self._subjects[subject]
        at = len(numbers) if version == "latest" else int(version)
        if not 1 <= at <= len(numbers):
            return 404, {"error_code": 40402, "message": "Version not found."}
        number = numbers[at - 1]
        return 200, {"subject": subject, "version": at, "id": number, **self._schemas[number]}

    def _lookup(self, subject: str, wanted: dict[str, str]) -> tuple[int, Any]:
        for number in self._subjects.get(subject, []):
            schema = self._schemas[number]
            if schema["schema"] == wanted["schema"]:
                return 200, {"subject": subject, "version": 1, "id": number, **schema}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._do()

            def do_POST(self) -> None:
                self._do()

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                authorization = self.headers.get("Authorization") or ""
                status, answer = registry.answer(self.command, self.path, authorization, body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_args: object) -> None:
                pass

        return Handler
