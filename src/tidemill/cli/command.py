"""The life of one command: run it, print its result, turn a failure into words and a status.

A command is a function, sync or async, whose last parameter is `common: Common` and which returns
what there is to show. `command` registers it with its examples; `execute` runs it.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.cli.exits import CommandError, ErrorReport, Exit, exit_for_code
from tidemill.cli.options import COMMON, Common
from tidemill.cli.render import Format, plain, show, talk
from tidemill.errors import ApiError, TidemillError

if TYPE_CHECKING:
    from cyclopts import App

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES_ATTRIBUTE = "tidemill_examples"
MUTATES_ATTRIBUTE = "tidemill_mutates"
STREAMS_ATTRIBUTE = "tidemill_streams"


def command(
    app: App,
    *,
    examples: Sequence[str],
    name: str | None = None,
    mutates: bool = False,
    streams: bool = False,
    default: bool = False,
    fast_loop: bool = False,
) -> Callable[[F], F]:
    """Register a function as a command of `app`.

    `mutates` says that it changes something, so it must have `--dry-run`; `streams` that it prints
    as it goes instead of returning a result; `default` that `app` itself is the command;
    `fast_loop` that it is worth the import of a faster event loop.
    """

    def register(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> int:
            return execute(function, args, kwargs, fast_loop=fast_loop)

        run.__doc__ = flowing(function.__doc__ or "")
        setattr(run, EXAMPLES_ATTRIBUTE, tuple(examples))
        setattr(run, MUTATES_ATTRIBUTE, mutates)
        setattr(run, STREAMS_ATTRIBUTE, streams)
        epilogue = "Examples:\n\n" + "\n".join(f"  {example}" for example in examples)
        if default:
            app.default(run)
            # The head of its help is the line of the root's table: what else there is to say about
            # it goes below the options.
            _, _, details = run.__doc__.partition("\n\n")
            app.help_epilogue = f"{details}\n\n{epilogue}".lstrip()
        else:
            app.command(run, name=name, help_epilogue=epilogue)
        return function

    return register


def flowing(docstring: str) -> str:
    """The text with each paragraph in one line, for a help that wraps at the terminal's edge."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def execute(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    fast_loop: bool = False,
) -> int:
    """Run a command's function to its exit status; nothing but bugs escapes."""
    common = kwargs.get("common", COMMON)
    try:
        result = function(*args, **kwargs)
        if inspect.iscoroutine(result):
            from tidemill.cli.loops import run_async

            result = run_async(result, fast_loop=fast_loop)
        show(result, common.fmt)
        return int(getattr(result, "exit_code", Exit.OK))
    except BrokenPipeError:
        # Whoever read our output has enough: `tidemill consume clicks | head` is no failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except (TidemillError, OSError, TimeoutError) as error:
        if common.verbose:
            import traceback

            traceback.print_exc()
        return report(error, common)


def report(error: BaseException, common: Common) -> int:
    """Say on stderr what failed and what to do, in words or as JSON; the exit status."""
    found = describe(error, common)
    print_error(found, common.fmt)
    return found.exit_code


def print_error(found: ErrorReport, fmt: Format) -> None:
    if fmt == "json":
        talk(json.dumps(plain(found) | {"exit_code": int(found.exit_code)}))
        return
    talk(f"error: {found.error}")
    if found.hint:
        talk(f"hint: {found.hint}")


def describe(error: BaseException, common: Common) -> ErrorReport:
    """An exception as a report: message, status, protocol code, hint."""
    if isinstance(error, CommandError):
        return ErrorReport(error.message, error.exit_code, hint=error.hint)
    if isinstance(error, ApiError):
        return _describe_api(error, common)
    if isinstance(error, FileNotFoundError):
        return ErrorReport(f"{error.filename}: no such file or directory", Exit.NOT_FOUND)
    if isinstance(error, PermissionError):
        return ErrorReport(f"{error.filename}: permission denied", Exit.DENIED)
    if isinstance(error, TimeoutError):
        return ErrorReport("no answer in time", Exit.UNREACHABLE, hint=_source(common))
    if isinstance(error, ValueError):
        return ErrorReport(str(error), Exit.USAGE)
    return ErrorReport(str(error) or type(error).__name__, Exit.FAILED)


def _describe_api(error: ApiError, common: Common) -> ErrorReport:
    from tidemill.client.errors import UnknownBrokerError

    cause = error.__cause__
    # What the broker answered says more than that we stopped asking.
    status = exit_for_code(cause.code if isinstance(cause, ApiError) else error.code)
    if isinstance(error, UnknownBrokerError):
        status = Exit.NOT_FOUND
    message = error.message or error.code.name
    hint: str | None = getattr(error, "hint", None)
    if status is Exit.UNREACHABLE:
        hint = "; ".join(part for part in (_source(common), hint) if part)
    return ErrorReport(message, status, error.code.name, hint)


def _source(common: Common) -> str | None:
    """Which address was tried and who said so."""
    try:
        target = common.target
    except TidemillError:
        return None
    return f"the address {target.bootstrap} came from {target.source}"


def confirm(question: str, common: Common) -> None:
    """Ask before something is lost; without a terminal only `--yes` will do."""
    if common.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            f"{question} Not done: there is no terminal to ask.", Exit.USAGE, "add --yes to do it"
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("not confirmed, nothing done", Exit.FAILED)
