"""`kafka-configs`: show and change settings of topics, brokers and groups, and log levels."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import ConfigEntry, ConfigResource

ENTITY_TYPES = (
    "topics",
    "clients",
    "users",
    "brokers",
    "ips",
    "client-metrics",
    "groups",
    "broker-loggers",
)
LOGGERS = "broker-loggers"
SUPPORTED = ("topics", "brokers", "groups", LOGGERS)
OF_BROKERS = ("brokers", LOGGERS)
WITH_DEFAULTS = ("users", "clients", "ips", "brokers")
SHORT = {"topic": "topics", "group": "groups", "broker": "brokers", "broker_logger": LOGGERS}
"""Options that name a kind of entity and the entity at once."""
BAD_PAIR = (
    "requirement failed: Invalid entity config: all configs to be added must be in the format "
    '"key=val" or  "key=[val1,val2]" to group values which contain commas.'
)
# A comma ends a pair unless it stands inside square brackets.
_COMMA = re.compile(r",(?![^\[]*\])")


def parser() -> Options:
    p = Options("kafka-configs", "Change and show the settings of topics, brokers and groups.")
    common.address_options(p)
    p.value("bootstrap-controller", "As --bootstrap-server: every broker answers here.")
    p.flag("alter", "Change settings.")
    p.flag("describe", "Show settings.")
    p.flag("all", "With --describe: show defaults, too.")
    p.many("entity-type", "topics, brokers, groups or broker-loggers.")
    p.many("entity-name", "The topic's name, or the id of the broker or the group.")
    p.flag("entity-default", "The default of all brokers.")
    p.value("topic", "Short for --entity-type topics --entity-name.")
    p.value("broker", "Short for --entity-type brokers --entity-name.")
    p.value("broker-logger", "Short for --entity-type broker-loggers --entity-name.")
    p.value("group", "Short for --entity-type groups --entity-name.")
    p.flag("broker-defaults", "Short for --entity-type brokers --entity-default.")
    p.value("add-config", "k1=v1,k2=[v1,v2],k3=v3")
    p.value("add-config-file", "A properties file with settings to add.")
    p.value("delete-config", "k1,k2")
    p.flag("force", "Do not ask.")
    return p


def main(argv: Sequence[str]) -> int:
    def failed(text: str) -> None:
        common.err(f"Error while executing config command with args '{' '.join(argv)}'")
        common.err(text)

    return common.run(argv, parser(), _work, on_failure=failed)


async def _work(options: argparse.Namespace) -> int:
    _check(options)
    options.bootstrap_server = options.bootstrap_server or options.bootstrap_controller
    missing = "Either --bootstrap-server or --bootstrap-controller must be specified."
    try:
        target = common.target(options, missing)
    except UsageError as error:
        raise UsageError(str(error), with_options=False) from None
    kind, name = _entity(options)
    async with common.for_client(target, "admin").admin() as admin:
        if options.alter:
            await _alter(admin, kind, name, options)
        else:
            await _describe(admin, kind, name, options)
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.alter == options.describe:
        raise UsageError("Command must include exactly one action: --describe, --alter")
    for change in ("add_config", "delete_config"):
        if options.describe and common.is_given(options, change):
            raise common.cannot_be_used_with("describe", change)
    if options.bootstrap_server and options.bootstrap_controller:
        raise _wrong("Only one of --bootstrap-server or --bootstrap-controller can be specified")


def _wrong(text: str) -> UsageError:
    return UsageError(text, with_options=False)


def _entity(options: argparse.Namespace) -> tuple[str, str | None]:
    """(kind, name): name None means all of the kind, "" the default of all brokers."""
    kind, names = _named(options)
    if kind not in SUPPORTED:
        raise ToolError(f"Settings of {kind} are not supported by this tool yet.")
    name = names[0] if names else None
    if kind == LOGGERS and not name:
        action = "alter" if options.alter else "describe"
        raise _wrong(f"An entity name must be specified with --{action} of {kind}")
    if options.alter:
        _check_alter(kind, name, options)
    if len(names) > 1:
        raise _wrong("An entity name must be specified for every entity type")
    return kind, _broker_name(kind, name) if name and kind in OF_BROKERS else name


def _check_alter(kind: str, name: str | None, options: argparse.Namespace) -> None:
    if kind == "brokers" and name is None:
        raise _wrong(
            "An entity-name or default entity must be specified with --alter of users, clients, "
            "brokers or ips"
        )
    if kind != "brokers" and not name:
        raise _wrong(f"An entity name must be specified with --alter of {kind}")
    if not (options.add_config or options.add_config_file or options.delete_config):
        raise _wrong(
            "At least one of --add-config, --add-config-file, or --delete-config must be "
            "specified with --alter"
        )
    if options.add_config and options.add_config_file:
        raise _wrong("Only one of --add-config or --add-config-file must be specified")


def _named(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The one kind of entity that the options name, in whichever spelling, and the names."""
    short = {
        kind: getattr(options, option)
        for option, kind in SHORT.items()
        if getattr(options, option) is not None
    }
    if options.broker_defaults:
        short |= {"brokers": ""}
    kinds = [*options.entity_type, *short]
    if options.broker_defaults and options.broker is not None:
        kinds.append("brokers")
    _check_kinds(kinds)
    if short and (options.entity_name or options.entity_default):
        raise _wrong(
            "--entity-{type,name,default} should not be used in conjunction with specific entity "
            "flags"
        )
    if not kinds:
        raise _wrong("At least one entity type must be specified")
    if len(kinds) > 1 and not {"users", "clients"}.issuperset(kinds):
        raise _wrong("Only 'users' and 'clients' entity types may be specified together")
    if len(options.entity_name) > len(kinds) == 1:
        raise _wrong("Found multiple arguments for option entity-name, but you asked for only one")
    if options.describe and options.entity_default and kinds[0] not in WITH_DEFAULTS:
        raise _wrong(f"--entity-default must not be specified with --describe of {kinds[0]}")
    by_default = [""] if options.entity_default else []
    return kinds[0], [*options.entity_name, *by_default, *short.values()]


def _check_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in ENTITY_TYPES:
            listed = ", ".join(ENTITY_TYPES)
            raise _wrong(
                f"Invalid entity type {kind}, the entity type must be one of {listed} with a "
                "--bootstrap-server or --bootstrap-controller argument"
            )
    doubles = [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]
    if doubles:
        raise _wrong(f"Duplicate entity type(s) specified: {','.join(doubles)}")


def _broker_name(kind: str, name: str) -> str:
    if name and not name.isdigit():
        raise UsageError(
            f"The entity name for {kind} must be a valid integer broker id, but it is: {name}",
            with_options=False,
        )
    return name


def split_pairs(text: str) -> dict[str, str]:
    """`a=1,b=[x,y]` as a mapping; brackets keep a value with commas together."""
    found: dict[str, str] = {}
    for word in _COMMA.split(text.strip()):
        if not word.strip():
            continue
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(BAD_PAIR, with_options=False)
        found[key.strip()] = re.sub(r"\[?\]?", "", value.strip())
    return found


async def _alter(admin: Admin, kind: str, name: str | None, options: argparse.Namespace) -> None:
    from tidemill.client.admin_types import AlterOp

    added = common.read_properties(options.add_config_file) if options.add_config_file else {}
    added |= split_pairs(options.add_config) if options.add_config else {}
    removed = [w.partition("=")[0].strip() for w in (options.delete_config or "").split(",") if w]
    if kind == LOGGERS:
        await _check_loggers(admin, name or "", [*removed, *added])
    ops = [AlterOp.set(k, v) for k, v in added.items()] + [AlterOp.delete(k) for k in removed]
    (await admin.alter_configs({_resource(kind, name or ""): ops})).raise_first()
    if name:
        out(f"Completed updating config for {kind[:-1]} {name}.")
    else:
        out(f"Completed updating default config for {kind} in the cluster.")


async def _check_loggers(admin: Admin, broker: str, wanted: Sequence[str]) -> None:
    """Levels of loggers that a broker does not have are a typing error, and not sent to it."""
    resource = _resource(LOGGERS, broker)
    known = (await admin.describe_configs([resource])).raise_first()[resource]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ToolError(f"Invalid broker logger(s): {','.join(unknown)}")


def _resource(kind: str, name: str) -> ConfigResource:
    from tidemill.client.admin_types import ConfigResource, ResourceType

    types = {
        "topics": ResourceType.TOPIC,
        "groups": ResourceType.GROUP,
        LOGGERS: ResourceType.BROKER_LOGGER,
    }
    return ConfigResource(types.get(kind, ResourceType.BROKER), name)


async def _describe(admin: Admin, kind: str, name: str | None, options: argparse.Namespace) -> None:
    known = await _names(admin, kind)
    if name and name not in known:
        one = kind[:-1]
        out(f"The {one} '{name}' doesn't exist and doesn't have dynamic config.")
        return
    wanted = [name] if name is not None else [*known, *([""] if kind == "brokers" else [])]
    resources = [_resource(kind, n) for n in wanted]
    found = (await admin.describe_configs(resources, include_synonyms=True)).raise_first()
    for resource in resources:
        _heading(kind, resource.name, options.all)
        for entry in sorted(found[resource].values(), key=lambda e: e.name):
            if options.all or _is_dynamic(kind, resource.name, entry):
                out(entry_line(entry))


async def _names(admin: Admin, kind: str) -> list[str]:
    if kind == "topics":
        return [t.name for t in await admin.list_topics(internal=True)]
    if kind == "groups":
        return await _groups(admin)
    return [str(b.broker_id) for b in (await admin.describe_cluster()).brokers]


async def _groups(admin: Admin) -> list[str]:
    """Those that are there, and those that have settings without being there."""
    from tidemill.client.admin_types import ResourceType

    live = [group.group_id for group in await admin.list_groups()]
    with_settings = await admin.list_config_resources([ResourceType.GROUP])
    return list(dict.fromkeys([*live, *(resource.name for resource in with_settings)]))


def _heading(kind: str, name: str, everything: bool) -> None:
    if name:
        which = "All" if everything else "Dynamic"
        out(f"{which} configs for {kind[:-1]} {name} are:")
    else:
        out(f"Default configs for {kind} in the cluster are:")


def _is_dynamic(kind: str, name: str, entry: ConfigEntry) -> bool:
    from tidemill.client.admin_types import ConfigSource

    if kind == "topics":
        return entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    if kind == "groups":
        return entry.source is ConfigSource.DYNAMIC_GROUP_CONFIG
    if kind == LOGGERS:
        return True  # Kafka shows every logger, with --all or without.
    if name:
        return entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG
    return entry.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


def entry_line(entry: ConfigEntry) -> str:
    """One setting as Kafka prints it; what is sensitive stays hidden as `null`."""
    value = "null" if entry.value is None else entry.value
    synonyms = ", ".join(
        f"{s.source.name}:{s.name}={'null' if s.value is None else s.value}" for s in entry.synonyms
    )
    sensitive = str(entry.sensitive).lower()
    return f"  {entry.name}={value} sensitive={sensitive} synonyms={{{synonyms}}}"
