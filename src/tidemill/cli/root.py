"""The table of commands, and the help of `tidemill` itself: plain data and plain text.

Whoever types `tidemill` wants to see at once what there is, so this module needs neither the
command framework nor a renderer. `app.py` makes the framework's commands from the same table.
"""

from __future__ import annotations

RUN = "Run brokers"
TOPICS = "Topics and records"
CLUSTER = "Cluster"
SETTINGS = "Settings"
SPARK = "Pipelines on Spark"
TOOLS = "Look and measure"
OPTIONS = "Options"

SUMMARY = "Tidemill: event streaming that speaks Kafka's protocol."

# (group, name, module attribute, one line of help)
COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    (RUN, "up", "up:app", "Run brokers here, in the foreground."),
    (RUN, "broker", "broker:app", "Bring one broker back, add one, or take one down."),
    (RUN, "status", "status:app", "Show the brokers that live in a data directory."),
    (RUN, "demo", "demo:app", "Brokers, clicks, a Spark pipeline, a crash, and what came out."),
    (TOPICS, "topic", "topic:app", "List, create, describe, change and delete topics."),
    (TOPICS, "produce", "produce:app", "Write records to a topic from stdin or a file."),
    (TOPICS, "consume", "consume:app", "Read records of a topic."),
    (TOPICS, "ship", "ship:app", "Follow log files and send their lines to a topic."),
    (TOPICS, "group", "group:app", "List, describe, move and delete consumer groups."),
    (CLUSTER, "cluster", "cluster:app", "Health, brokers, leaders, and moving partitions."),
    (SETTINGS, "config", "config:app", "Get, set, explain and check settings."),
    (SETTINGS, "profile", "profile:app", "Name clusters and switch between them."),
    (SPARK, "pipeline", "pipeline:app", "Check, run and watch pipelines on Spark."),
    (TOOLS, "log", "log:app", "Look into log files, verify and import them."),
    (TOOLS, "perf", "perf:app", "Measure how fast records go in and out."),
    (
        TOOLS,
        "validate",
        "validate:app",
        "Kill brokers under your settings; see what they promise and keep.",
    ),
    (TOOLS, "doctor", "doctor:app", "Check this machine and a cluster for trouble."),
    (TOOLS, "help", "help_topics:app", "More to read: exit codes, offsets, formats."),
)

HELP_OPTION = "--help"
VERSION_OPTION = "--version"
COMPLETION_OPTION = "--install-completion"
OPTION_TEXTS: dict[str, str] = {
    HELP_OPTION: "Show this and exit; after a command, what it takes.",
    VERSION_OPTION: "Show the version and exit.",
    COMPLETION_OPTION: "Install completion for your shell.",
}

EPILOGUE = """\
Examples:

  tidemill up
  tidemill topic create clicks
  echo hello | tidemill produce clicks
  tidemill consume clicks --offset start -e
"""


def groups() -> list[str]:
    """The headings of the commands in the order in which they are shown."""
    return list(dict.fromkeys(group for group, _, _, _ in COMMANDS))


def render() -> str:
    """What `tidemill --help` prints."""
    parts = [f"Usage: tidemill COMMAND\n\n{SUMMARY}\n"]
    for title in groups():
        rows = {name: text for group, name, _, text in COMMANDS if group == title}
        parts.append(_section(title, rows))
    options = {_spelt(name): text for name, text in OPTION_TEXTS.items()}
    parts.append(_section(OPTIONS, options))
    return "\n".join([*parts, EPILOGUE])


def _spelt(option: str) -> str:
    return f"{option}, -h" if option == HELP_OPTION else option


def _section(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    lines = (f"  {name.ljust(width)}  {text}\n" for name, text in rows.items())
    return f"{title}:\n{''.join(lines)}"
