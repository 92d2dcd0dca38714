"""The commands as the framework knows them; a command's module is imported when it runs."""

from __future__ import annotations

from cyclopts import App, Group

from tidemill import __version__
from tidemill.cli import root


def build() -> App:
    """The root command with every sub-command registered but none imported."""
    app = App(
        name="tidemill",
        help=root.SUMMARY,
        version=__version__,
        help_format="plaintext",
        help_epilogue=root.EPILOGUE,
        result_action="return_value",
    )
    titles = {title: Group(title, sort_key=at) for at, title in enumerate(root.groups())}
    for title, name, target, text in root.COMMANDS:
        app.command(f"tidemill.cli.{target}", name=name, help=text, group=titles[title])
    options = Group(root.OPTIONS, sort_key=len(titles))
    for name in (root.HELP_OPTION, root.VERSION_OPTION):
        app[name].group = (options,)
        app[name].help = root.OPTION_TEXTS[name]
    app.register_install_completion_command(
        help=root.OPTION_TEXTS[root.COMPLETION_OPTION], group=options
    )
    return app
