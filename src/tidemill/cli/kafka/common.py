"""What the Kafka-named tools share: options with Kafka's manners, the address, errors, printing."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NoReturn

from tidemill.cli import connect
from tidemill.cli.loops import run_async
from tidemill.errors import ApiError, TidemillError

KAFKA_VERSION = "4.3.1"
"""What `--version` says: the release whose tools these are."""


class UsageError(TidemillError):
    """The command line is wrong; printed with the options below, exit status 1."""

    def __init__(self, message: str, *, with_options: bool = True) -> None:
        super().__init__(message)
        self.with_options = with_options


class ToolError(TidemillError):
    """A failure whose text is printed as it stands."""


class Options(argparse.ArgumentParser):
    """An argparse parser that errs like Kafka's: exit status 1, no abbreviations, its wording."""

    def __init__(self, tool: str, description: str) -> None:
        super().__init__(
            prog=tool,
            description=description,
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.flag("help", "Print usage information.")
        self.flag("version", "Display Kafka version.")

    def flag(self, name: str, text: str) -> None:
        self.add_argument(f"--{name}", action="store_true", help=text)

    def value(self, name: str, text: str, **more: Any) -> None:
        self.add_argument(f"--{name}", help=text, **more)

    def many(self, name: str, text: str, **more: Any) -> None:
        """A repeatable option."""
        self.add_argument(f"--{name}", action="append", default=[], help=text, **more)

    def error(self, message: str) -> NoReturn:
        raise UsageError(_kafka_wording(message))

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse; `--help` and `--version` end here, as Kafka has it."""
        if not argv:
            raise UsageError(self.description or "")
        options, unknown = self.parse_known_args(list(argv))
        if options.help:
            raise UsageError(self.description or "")
        if options.version:
            out(KAFKA_VERSION)
            raise SystemExit(0)
        if unknown:
            word = unknown[0]
            if word.startswith("-"):
                name = word.lstrip("-").partition("=")[0]
                raise UsageError(f"{name} is not a recognized option")
            raise UsageError(f"Unexpected argument {word!r}")
        return options


def _kafka_wording(message: str) -> str:
    """argparse's complaints in joptsimple's words, where a script may look for them."""
    words = message.split()
    if message.startswith("argument --") and "expected" in message:
        return f"Option {words[1].rstrip(':').lstrip('-')} requires an argument"
    if "invalid int value" in message or "invalid float value" in message:
        value = message.rsplit(": ", 1)[-1].strip("'")
        return f"Cannot parse argument '{value}' of option {words[1].rstrip(':').lstrip('-')}"
    return message


def address_options(parser: Options, *, broker_list: bool = True) -> None:
    """`--bootstrap-server` and the old spellings that runbooks still hold."""
    parser.value("bootstrap-server", "Brokers to connect to: HOST1:PORT1,HOST2:PORT2.")
    if broker_list:
        # Some tools have a --broker-list that names ids: theirs is not to be taken for this one.
        parser.value("broker-list", "Old spelling of --bootstrap-server.", dest="old_bootstrap")
    parser.value(
        "zookeeper",
        "Old way to find the cluster: brokers are looked up there. Where no ZooKeeper answers, "
        "the address of the profile is used.",
    )
    parser.value("command-config", "Property file with settings for the client.")


def target(
    options: argparse.Namespace,
    missing: str,
    *,
    properties: Iterable[str] = (),
    files: Iterable[str | None] = (),
    old_spelling: bool = False,
) -> connect.Target:
    """The cluster that the options name, or else the one that the user set up for all commands.

    `missing` is the tool's complaint when there is neither; with an `old_spelling`, which no Kafka
    of today takes anyway, the default address will do.
    """
    settings: dict[str, str] = {}
    for path in (*files, getattr(options, "command_config", None)):
        if path:
            settings |= read_properties(path)
    settings |= connect.parse_pairs(properties, "a property")
    bootstrap = options.bootstrap_server or getattr(options, "old_bootstrap", None)
    bootstrap = bootstrap or settings.pop("bootstrap.servers", None)
    settings.pop("bootstrap.servers", None)
    known = _only_known(settings)
    if bootstrap:
        return connect.Target(bootstrap, "the command line", known)
    zookeeper = getattr(options, "zookeeper", None)
    if zookeeper and (registered := _registered_at(zookeeper)):
        err(f"--zookeeper {zookeeper}: its brokers are {registered}")
        return connect.Target(registered, f"ZooKeeper at {zookeeper}", known)
    found = connect.resolve()
    if zookeeper:
        why = f"--zookeeper {zookeeper}: the cluster keeps its own store"
    elif old_spelling or not found.is_default:
        why = "no --bootstrap-server"
    else:
        raise UsageError(missing)
    err(f"{why}; using {found.bootstrap} from {found.source}")
    return connect.Target(found.bootstrap, found.source, dict(found.settings) | known)


def _registered_at(zookeeper: str) -> str | None:
    from tidemill.cli.kafka.zookeeper import find_brokers

    return find_brokers(zookeeper)


def _only_known(settings: dict[str, str]) -> dict[str, str]:
    """Settings that our clients have; the rest is named once. A Java client logs it, too."""
    from tidemill.client.settings import (
        AdminSettings,
        ConsumerSettings,
        ProducerSettings,
        describe,
    )

    names = {
        name
        for kind in (AdminSettings, ProducerSettings, ConsumerSettings)
        for name, _, _ in describe(kind)
        if not name.endswith("serializer")  # in a file they name Java classes
    }
    unknown = sorted(set(settings) - names)
    if unknown:
        sys.stderr.write(f"settings without meaning here are ignored: {', '.join(unknown)}\n")
    return {name: value for name, value in settings.items() if name in names}


def for_client(found: connect.Target, kind: str) -> connect.Target:
    """`found` with only the settings that this kind of client has: an admin has no linger."""
    from tidemill.client import settings as table

    kinds = {
        "admin": table.AdminSettings,
        "producer": table.ProducerSettings,
        "consumer": table.ConsumerSettings,
    }
    names = {name for name, _, _ in table.describe(kinds[kind])}
    kept = {name: value for name, value in found.settings.items() if name in names}
    return connect.Target(found.bootstrap, found.source, kept, found.timeout_ms)


def read_properties(path: str) -> dict[str, str]:
    """A Java properties file; a missing one is an error in Java's words."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        raise ToolError(f"{path} (No such file or directory)") from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """Lines `key=value` or `key: value`, comments with # or !, a backslash joins lines."""
    found: dict[str, str] = {}
    joined = text.replace("\\\r\n", "").replace("\\\n", "")
    for line in joined.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        cuts = [cut for cut in (stripped.find("="), stripped.find(":")) if cut > 0]
        cut = min(cuts) if cuts else len(stripped)
        found[stripped[:cut].strip()] = stripped[cut + 1 :].strip()
    return found


def loose_pairs(words: Iterable[str]) -> dict[str, str]:
    """`key=value` words for readers and formatters, blanks and all; a bare key has no value."""
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def out(text: str = "", end: str = "\n") -> None:
    """Data, on stdout, as the Java tools print it."""
    sys.stdout.write(text + end)


def err(text: str) -> None:
    sys.stderr.write(text + "\n")


def run(
    argv: Sequence[str],
    parser: Options,
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
    on_failure: Callable[[str], None] = err,
    *,
    fast_loop: bool = False,
) -> int:
    """The frame of every tool: parse, work, and put a failure into the tool's own words."""
    try:
        options = parser.read(argv)
        return run_async(work(options), fast_loop=fast_loop)
    except UsageError as error:
        return usage(parser, error)
    except ToolError as error:
        err(str(error))
    except ApiError as error:
        on_failure(message_of(error))
    except (TidemillError, OSError) as error:
        on_failure(str(error))
    finally:
        sys.stdout.flush()
    return 1


def usage(parser: Options, error: UsageError) -> int:
    err(str(error))
    if error.with_options:
        sys.stderr.write(parser.format_help())
    return 1


def is_given(options: argparse.Namespace, name: str) -> bool:
    """Whether the option is on the command line, whatever it takes."""
    value = getattr(options, name)
    return value is not None and value is not False and value != []


def cannot_be_used_with(name: str, other: str) -> UsageError:
    first, second = (word.replace("_", "-") for word in (name, other))
    return UsageError(f'Option "[{first}]" can\'t be used with option "[{second}]"')


def not_together(options: argparse.Namespace, *pairs: tuple[str, str]) -> None:
    """Two spellings of one thing: which of them should count?"""
    for one, other in pairs:
        names = [re.sub("[-.]", "_", name) for name in (one, other)]
        if all(is_given(options, name) for name in names):
            raise UsageError(f"Options --{one} and --{other} cannot be specified together.")


def message_of(error: ApiError) -> str:
    """The broker's words, or else the usual ones for the code."""
    return error.message or f"{error.code.name}"


def java_error(error: ApiError) -> str:
    """The exception's class and message as the Java client would name them."""
    words = "".join(part.capitalize() for part in error.code.name.split("_"))
    name = words if words.endswith("Exception") else f"{words}Exception"
    return f"org.apache.kafka.common.errors.{name}: {message_of(error)}"


def java_uuid(value: Any) -> str:
    """A topic id as Kafka prints it: 16 bytes in URL-safe base64 without padding."""
    import base64

    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def topic_pattern(pattern: str) -> str:
    """Kafka's include list: a regular expression in which a comma means `or`, quotes mean
    nothing, and blanks are dropped."""
    cleaned = pattern.strip().replace(",", "|").replace(" ", "")
    return re.sub(r"^[\"']+|[\"']+$", "", cleaned)


def topic_filter(pattern: str) -> Callable[[str], bool]:
    """The include list as a test of names."""
    try:
        compiled = re.compile(topic_pattern(pattern))
    except re.error:
        raise ToolError(f"{pattern} is an invalid regex.") from None
    return lambda name: compiled.fullmatch(name) is not None


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
