"""Configuration: Kafka's keys in one typed table, read from files, variables and flags.

May import only the base layer. Start reading at `keys.py` (what a key is), then `tables.py` (all of
them), `sources.py` (`load_broker_config`), `broker.py`, `topic.py` and `group.py` (typed, layered
values) and `describe.py` (what DescribeConfigs answers). The reference page is made by
`reference.py`.
"""

from __future__ import annotations

from tidemill.config.broker import BrokerConfig, Setting, Source
from tidemill.config.describe import (
    DescribedConfig,
    Synonym,
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_topic,
)
from tidemill.config.dynamic import Scope, check_broker_overrides
from tidemill.config.explain import EffectiveSetting, Explained, effective, explain
from tidemill.config.group import GroupConfig, check_group_overrides, resolve_group_config
from tidemill.config.keys import ConfigError, ConfigKey, ConfigType, Status, Update, Value
from tidemill.config.listeners import Listener
from tidemill.config.removed import REMOVED_CLIENT_KEYS
from tidemill.config.sources import check_file, load_broker_config, variable_name
from tidemill.config.tables import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from tidemill.config.topic import TopicConfig, check_topic_overrides, resolve_topic_config
from tidemill.config.vet import Problem

__all__ = [
    "BROKER_KEYS",
    "GROUP_KEYS",
    "REMOVED_CLIENT_KEYS",
    "TOPIC_KEYS",
    "BrokerConfig",
    "ConfigError",
    "ConfigKey",
    "ConfigType",
    "DescribedConfig",
    "EffectiveSetting",
    "Explained",
    "GroupConfig",
    "Listener",
    "Problem",
    "Scope",
    "Setting",
    "Source",
    "Status",
    "Synonym",
    "TopicConfig",
    "Update",
    "Value",
    "check_broker_overrides",
    "check_file",
    "check_group_overrides",
    "check_topic_overrides",
    "describe_broker",
    "describe_broker_default",
    "describe_group",
    "describe_topic",
    "effective",
    "explain",
    "load_broker_config",
    "resolve_group_config",
    "resolve_topic_config",
    "variable_name",
]
