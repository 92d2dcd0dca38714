"""Promises that every command keeps, checked by walking the tree."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tests.cli.helpers import BIN, ROOT

from tidemill.cli import docs, main, serve
from tidemill.cli.app import build
from tidemill.cli.kafka.__main__ import TOOLS
from tidemill.cli.root import COMMANDS

LEAVES = list(docs.leaves())
IDS = [" ".join(leaf.words[1:]) for leaf in LEAVES]

EXPECTED = """
    up status produce consume ship doctor demo validate
    broker start|stop
    cluster info|health|brokers|elect
    cluster reassign plan|execute|rebalance|verify|cancel|list
    topic list|create|describe|alter|delete|add-partitions|trim
    group list|describe|members|offsets|seek|delete
    config get|set|explain|check|print
    log dump|verify|import
    pipeline init|check|run|status|stop|mirror|repartition
    pipeline cluster up
    perf produce|consume
    profile create|use|list|edit
    help exit-codes|offsets|formats|settings
"""


def option_names(leaf: docs.Leaf) -> set[str]:
    arguments: Any = leaf.app.assemble_argument_collection()
    return {name for argument in arguments for name in argument.names}


def test_the_tree_is_the_one_we_promise() -> None:
    expected: set[str] = set()
    first, *rest = [line.split() for line in EXPECTED.strip().splitlines()]
    expected.update(first)
    for *nouns, verbs in rest:
        expected.update(" ".join([*nouns, verb]) for verb in verbs.split("|"))
    assert set(IDS) == expected


@pytest.mark.parametrize("leaf", LEAVES, ids=IDS)
def test_every_command_takes_format_and_the_other_global_options(leaf: docs.Leaf) -> None:
    assert option_names(leaf) >= {
        "--format",
        "--bootstrap",
        "-b",
        "--profile",
        "-X",
        "--timeout",
        "--yes",
        "--verbose",
        "--no-color",
    }


@pytest.mark.parametrize("leaf", LEAVES, ids=IDS)
def test_every_command_has_a_typed_result_or_streams(leaf: docs.Leaf) -> None:
    function = inspect.unwrap(leaf.function)
    result = inspect.signature(function).return_annotation
    if result == "None":
        assert leaf.streams
        return
    assert result not in (inspect.Signature.empty, "Any", "object")
    assert get_type_hints(function, include_extras=True, localns=_types())["return"] is not None


def _types() -> dict[str, Any]:
    """Names that the modules import for the type checker only."""
    from tidemill.client.admin_types import ConfigResource
    from tidemill.config import BrokerConfig

    return {"ConfigResource": ConfigResource, "BrokerConfig": BrokerConfig}


@pytest.mark.parametrize("leaf", LEAVES, ids=IDS)
def test_every_command_that_changes_something_has_a_dry_run(leaf: docs.Leaf) -> None:
    assert ("--dry-run" in option_names(leaf)) == leaf.mutates


@pytest.mark.parametrize("leaf", LEAVES, ids=IDS)
def test_every_command_explains_itself_with_examples(leaf: docs.Leaf) -> None:
    assert (leaf.function.__doc__ or "").strip()
    assert leaf.examples
    for example in leaf.examples:
        assert " ".join(leaf.words) in example


def test_all_that_is_said_about_a_command_is_in_its_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a command without verbs, too, whose first line is the root's; wrapped at the edge."""
    for words in (["validate"], ["up"], ["cluster", "reassign", "plan"]):
        leaf = next(each for each in LEAVES if list(each.words[1:]) == words)
        _, _, details = inspect.cleandoc(inspect.unwrap(leaf.function).__doc__ or "").partition(
            "\n\n"
        )
        assert details
        build()([*words, "--help"], exit_on_error=False, result_action="return_value")
        shown = " ".join(capsys.readouterr().out.split())
        assert " ".join(details.split()) in shown


@pytest.mark.parametrize("leaf", LEAVES, ids=IDS)
def test_every_option_of_every_command_is_explained(leaf: docs.Leaf) -> None:
    arguments: Any = leaf.app.assemble_argument_collection()
    unexplained = [
        argument.names for argument in arguments if argument.show and not argument.parameter.help
    ]
    assert unexplained == []


def test_the_options_of_up_are_the_same_for_help_and_for_the_fast_path() -> None:
    shown = option_names(next(leaf for leaf in LEAVES if leaf.words[1:] == ("up",)))
    parsed = {name for action in serve.parser()._actions for name in action.option_strings}
    assert {name for name in shown if name.startswith("-")} == parsed


def test_the_global_options_are_the_same_in_the_table_and_in_main() -> None:
    arguments: Any = LEAVES[0].app.assemble_argument_collection()
    common = [a for a in arguments if docs.GLOBALS in {g.name for g in a.parameter.group}]
    names = {name for argument in common for name in argument.names} - {"*"}
    assert names == main.TAKES_VALUE | main.IS_FLAG
    flags = {name for argument in common if argument.hint is bool for name in argument.names}
    assert flags == main.IS_FLAG


def test_the_reference_page_is_current() -> None:
    written = (ROOT / "docs" / "cli.md").read_text()
    assert written == docs.render(), "run: python -m tidemill.cli.docs > docs/cli.md"


def test_every_kafka_tool_has_its_script_and_every_script_its_tool() -> None:
    scripts = {path.name.removesuffix(".sh") for path in BIN.glob("*.sh")}
    assert scripts == set(TOOLS)


@pytest.mark.parametrize("path", sorted(BIN.iterdir()), ids=lambda path: path.name)
def test_scripts_are_posix_sh_and_executable(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\[\[|\bfunction\b|\blocal\b|<<<|\$\{[a-z_]+,,", text)
    if path.suffix == ".sh":
        assert text.startswith("#!/bin/sh\n")
        assert path.stat().st_mode & 0o111


def test_the_table_of_commands_is_grouped_for_the_root_help() -> None:
    assert len({name for _, name, _, _ in COMMANDS}) == len(COMMANDS)
