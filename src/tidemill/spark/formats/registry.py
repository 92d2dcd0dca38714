"""A schema registry, asked over its REST interface: schemas by id and by subject.

What an id stands for never changes, so answers are kept, as many as there is room for; that an id
is unknown is kept for a minute only. Several URLs are one registry: the next is asked when one does
not answer. A request ends within its timeout, a question within its attempts, and an answer is read
up to its limit. Passwords go into a header and nowhere else.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from tidemill.clock import Clock, SystemClock
from tidemill.spark.formats.model import FormatError

SchemaKind = Literal["AVRO", "JSON", "PROTOBUF"]
KINDS: tuple[SchemaKind, ...] = ("AVRO", "JSON", "PROTOBUF")
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
RETRIABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
NOT_FOUND = 404
REFUSED = frozenset({401, 403})
REFERENCES_MAX = 100
Kept = TypeVar("Kept")


class RegistryError(Exception):
    """The registry did not answer, or not with what was asked for."""


class SchemaNotFoundError(RegistryError):
    """The registry answered: there is no such schema, subject or version."""


class Reference(NamedTuple):
    """Another schema that one is built on: the name it goes by there, and where it is."""

    name: str
    subject: str
    version: int


class Registered(NamedTuple):
    """A schema as the registry has it."""

    id: int
    kind: SchemaKind
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a registry is waited for, and how much is kept of it."""

    timeout_ms: int = 10_000
    attempts: int = 3
    """Rounds over all URLs."""
    backoff_ms: int = 200
    """Before the second round; twice as much before each further one."""
    answer_bytes_max: int = 8 << 20
    kept_max: int = 1_000
    """Answers."""
    unknown_ms: int = 60_000
    """How long an unknown id stays unknown."""


class Transport(Protocol):
    """One HTTP exchange; raises OSError or HTTPException where there is no answer."""

    def __call__(
        self, request: urllib.request.Request, timeout_ms: int, bytes_max: int
    ) -> tuple[int, bytes]: ...


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the password to another host."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def over_http(
    request: urllib.request.Request, timeout_ms: int, bytes_max: int
) -> tuple[int, bytes]:
    """The standard library's client, without proxies from the environment and without redirects."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(request, timeout=timeout_ms / 1000) as answer:
            return int(answer.status), answer.read(bytes_max + 1)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(bytes_max + 1)


class Registry:
    """One registry, behind one or several URLs."""

    def __init__(
        self,
        urls: str,
        *,
        auth: str | None = None,
        patience: Patience | None = None,
        transport: Transport = over_http,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._servers = [_server(url, auth) for url in urls.split(",") if url.strip()]
        if not self._servers:
            raise FormatError("schema.registry.url names no URL")
        self._patience = patience or Patience()
        self._transport = transport
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._known: OrderedDict[str, Registered] = OrderedDict()
        self._unknown: OrderedDict[str, int] = OrderedDict()

    def by_id(self, schema_id: int, *, serialized: bool = False) -> Registered:
        """The schema with this id; protobuf's as a descriptor in base64 if `serialized`."""
        path = f"/schemas/ids/{schema_id}" + ("?format=serialized" if serialized else "")
        return self._kept(path, lambda: self._registered(self._get(path), path, schema_id))

    def latest(self, subject: str) -> Registered:
        """The newest schema of a subject: asked each time, since it changes."""
        path = f"/subjects/{_quoted(subject)}/versions/latest"
        return self._registered(self._get(path), path)

    def version(self, subject: str, version: int) -> Registered:
        path = f"/subjects/{_quoted(subject)}/versions/{version}"
        return self._kept(path, lambda: self._registered(self._get(path), path))

    def lookup(self, subject: str, text: str, kind: SchemaKind) -> int:
        """The id under which a subject has this schema. It is never registered here: which schemas
        a topic may have is not for a job to decide."""
        path = f"/subjects/{_quoted(subject)}"
        answer = self._ask(path, {"schema": text, "schemaType": kind})
        return self._registered(answer, path).id

    def references(self, schema: Registered) -> list[tuple[str, Registered]]:
        """Everything a schema is built on, by name, each after what it is built on itself."""
        found: dict[str, Registered] = {}
        self._collect(schema, found, ())
        return list(found.items())

    def _collect(
        self, schema: Registered, found: dict[str, Registered], inside: tuple[str, ...]
    ) -> None:
        for each in schema.references:
            if each.name in inside:
                raise RegistryError(f"schema {each.name} refers to itself")
            if each.name in found:
                continue
            if len(found) + len(inside) >= REFERENCES_MAX:
                raise RegistryError(f"a schema refers to more than {REFERENCES_MAX} others")
            other = self.version(each.subject, each.version)
            self._collect(other, found, (*inside, each.name))
            found[each.name] = other

    def _kept(self, path: str, ask: Callable[[], Registered]) -> Registered:
        if path in self._known:
            self._known.move_to_end(path)
            return self._known[path]
        now_ms = self._clock.monotonic_ms()
        if self._unknown.get(path, now_ms) > now_ms:
            raise SchemaNotFoundError(f"the registry has no {path}")
        try:
            answer = ask()
        except SchemaNotFoundError:
            _keep(self._unknown, path, now_ms + self._patience.unknown_ms, self._patience.kept_max)
            raise
        _keep(self._known, path, answer, self._patience.kept_max)
        return answer

    def _get(self, path: str) -> Any:
        return self._ask(path, None)

    def _ask(self, path: str, body: dict[str, str] | None) -> Any:
        """The JSON of an answer; each URL in turn, as often as patience allows."""
        failures: list[str] = []
        for attempt in range(self._patience.attempts):
            if attempt:
                self._sleep(self._patience.backoff_ms * 2 ** (attempt - 1) / 1000)
            failures.clear()
            for server in self._servers:
                try:
                    status, content = self._transport(
                        server.request(path, body),
                        self._patience.timeout_ms,
                        self._patience.answer_bytes_max,
                    )
                except (OSError, http.client.HTTPException) as error:
                    failures.append(f"{server.url}: {getattr(error, 'reason', None) or error!r}")
                    continue
                if status in RETRIABLE:
                    failures.append(f"{server.url}: HTTP {status}")
                    continue
                return self._answer(server, path, status, content)
        raise RegistryError(f"no schema registry answered {path}: {'; '.join(failures)}")

    def _answer(self, server: _Server, path: str, status: int, content: bytes) -> Any:
        if len(content) > self._patience.answer_bytes_max:
            limit = self._patience.answer_bytes_max
            raise RegistryError(f"{server.url}{path}: the answer is longer than {limit} bytes")
        if status in REFUSED:
            raise RegistryError(
                f"{server.url}{path}: HTTP {status}: check "
                "schema.registry.basic.auth.user.info (user:password)"
            )
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if status == NOT_FOUND and isinstance(answer, dict):
            raise SchemaNotFoundError(f"{path}: {answer.get('message', 'not found')}")
        if status != 200 or not isinstance(answer, dict):
            said = answer.get("message") if isinstance(answer, dict) else "no JSON object"
            raise RegistryError(
                f"{server.url}{path}: HTTP {status}, {said}; is this a schema registry?"
            )
        return answer

    def _registered(self, answer: Any, path: str, schema_id: int | None = None) -> Registered:
        text, kind = answer.get("schema"), answer.get("schemaType") or "AVRO"
        number = schema_id if schema_id is not None else answer.get("id")
        if not isinstance(text, str) or not isinstance(number, int) or kind not in KINDS:
            raise RegistryError(f"{path}: the answer is no schema: {str(answer)[:200]}")
        return Registered(number, kind, text, tuple(_references(answer.get("references"), path)))


def _references(listed: Any, path: str) -> Iterable[Reference]:
    for each in listed or ():
        try:
            yield Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryError(f"{path}: a reference without {error}") from error


def _keep(cache: OrderedDict[str, Kept], key: str, value: Kept, most: int) -> None:
    cache[key] = value
    while len(cache) > most:
        cache.popitem(last=False)


class _Server(NamedTuple):
    """One URL, its password apart from it."""

    url: str
    authorization: str | None

    def request(self, path: str, body: dict[str, str] | None) -> urllib.request.Request:
        headers = {"Accept": f"{CONTENT_TYPE}, application/json"}
        if self.authorization:
            headers["Authorization"] = self.authorization
        data = None
        if body is not None:
            headers["Content-Type"] = CONTENT_TYPE
            data = json.dumps(body).encode()
        return urllib.request.Request(self.url + path, data=data, headers=headers)

    def __repr__(self) -> str:
        return f"_Server({self.url})"


def _server(url: str, auth: str | None) -> _Server:
    """`http://user:password@host:8081/path` and `user:password` apart from it, both are usual."""
    parts = urllib.parse.urlsplit(url.strip())
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise FormatError("schema.registry.url has to be like http://host:8081, or https")
    user = parts.netloc.rpartition("@")[0]
    credentials = auth or urllib.parse.unquote(user)
    if credentials and ":" not in credentials:
        raise FormatError("the registry's user and password are given as user:password")
    authorization = None
    if credentials:
        authorization = "Basic " + base64.b64encode(credentials.encode()).decode()
    host = parts.netloc.rpartition("@")[2]
    return _Server(f"{parts.scheme}://{host}{parts.path.rstrip('/')}", authorization)


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


@lru_cache(maxsize=8)
def registry_for(urls: str, auth: str | None) -> Registry:
    """The registry of these settings, one for the process: Spark's workers live through many tasks,
    and what an id stands for stays the same."""
    return Registry(urls, auth=auth)
