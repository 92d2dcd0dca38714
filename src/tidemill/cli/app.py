"""The table of commands: names and one line each; a command's module is imported when it runs."""

from __future__ import annotations

from cyclopts import App, Group

from tidemill import __version__

RUN = Group("Run a broker", sort_key=1)
TOPICS = Group("Topics and records", sort_key=2)
SETTINGS = Group("Settings", sort_key=3)
TOOLS = Group("Look and measure", sort_key=4)
OPTIONS = Group("Options", sort_key=9)

# (group, name, module attribute, one line of help)
COMMANDS: tuple[tuple[Group, str, str, str], ...] = (
    (RUN, "up", "up:app", "Run a broker here, in the foreground."),
    (RUN, "status", "status:app", "Show the brokers that live in a data directory."),
    (RUN, "demo", "demo:app", "A broker, traffic, a crash, and what came through."),
    (TOPICS, "topic", "topic:app", "List, create, describe, change and delete topics."),
    (TOPICS, "produce", "produce:app", "Write records to a topic from stdin or a file."),
    (TOPICS, "consume", "consume:app", "Read records of a topic."),
    (SETTINGS, "config", "config:app", "Get, set, explain and check settings."),
    (SETTINGS, "profile", "profile:app", "Name clusters and switch between them."),
    (TOOLS, "log", "log:app", "Look into log files, verify and import them."),
    (TOOLS, "perf", "perf:app", "Measure how fast records go in and out."),
    (TOOLS, "doctor", "doctor:app", "Check this machine and a cluster for trouble."),
    (TOOLS, "help", "help_topics:app", "More to read: exit codes, offsets, formats."),
)

EPILOGUE = """\
Examples:

  tidemill up
  tidemill topic create clicks
  echo hello | tidemill produce clicks
  tidemill consume clicks --offset start -e
"""


def build() -> App:
    """The root command with every sub-command registered but none imported."""
    app = App(
        name="tidemill",
        help="Tidemill: event streaming that speaks Kafka's protocol.",
        version=__version__,
        help_format="plaintext",
        help_epilogue=EPILOGUE,
        result_action="return_value",
    )
    for group, name, target, text in COMMANDS:
        app.command(f"tidemill.cli.{target}", name=name, help=text, group=group)
    app["--help"].group = (OPTIONS,)
    app["--version"].group = (OPTIONS,)
    app.register_install_completion_command(
        help="Install completion for your shell.", group=OPTIONS
    )
    return app
