"""Reading settings: files, variables and flags, their precedence, and answers to mistakes."""

from __future__ import annotations

import re
import resource
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.config.helpers import STOCK_PROPERTIES

from tidemill.config import (
    BROKER_KEYS,
    ConfigError,
    Problem,
    Source,
    check_file,
    effective,
    explain,
    load_broker_config,
    variable_name,
)
from tidemill.config.sources import (
    FILE_BYTES_MAX,
    OTHER_VARIABLES,
    derived_defaults,
    key_of_variable,
    read_environment,
)

ROOT = Path(__file__).resolve().parents[2]
TELLING = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "Makefile")),
    *(ROOT / "docs").rglob("*.md"),
    *(path for path in (ROOT / "bin").iterdir() if path.is_file()),
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "tests" / "reference").glob("*kafka.py"),
]
VARIABLE = re.compile(r"\bTIDEMILL_[A-Z_]*[A-Z]\b(?!_)")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_stock_file_loads_with_one_warning_about_the_quorum(tmp_path: Path) -> None:
    file = write(tmp_path, "server.properties", STOCK_PROPERTIES)
    config, warnings = load_broker_config(properties_file=file)
    assert config.broker_id == 1
    assert [each.name for each in config.listeners] == ["PLAINTEXT"]
    assert [(each.host, each.port) for each in config.advertised_listeners] == [("localhost", 9092)]
    (kraft,) = [each for each in warnings if "metadata quorum" in each]
    assert "controller.listener.names, controller.quorum.bootstrap.servers, process.roles" in kraft
    assert "The listener CONTROLLER is not opened." in kraft
    (threads,) = [each for each in warnings if each.startswith("num.io.threads has no effect")]
    assert "run more brokers per machine" in threads
    (unsupported,) = [each for each in warnings if each.startswith("Not supported")]
    assert "share.coordinator.state.topic.min.isr" in unsupported
    assert len(warnings) == 5  # three of them about thread counts


def test_precedence_and_origin(tmp_path: Path) -> None:
    properties = write(tmp_path, "server.properties", "# four\nnum.partitions=4\nnode.id=7\n")
    toml = write(tmp_path, "broker.toml", '"num.partitions" = 3\n')
    environ = {"TIDEMILL_NUM_PARTITIONS": "2", "TIDEMILL_KAFKA_JARS": "/x", "HOME": "/"}
    flags = ["num.partitions=1"]
    steps: list[tuple[int, str, dict[str, object]]] = [
        (1, "--set", {"overrides": flags}),
        (2, "$TIDEMILL_NUM_PARTITIONS", {"environ": environ}),
        (3, "broker.toml:1", {"toml_file": toml}),
        (4, "server.properties:2", {"properties_file": properties}),
    ]
    for strongest in range(len(steps)):
        arguments: dict[str, object] = {}
        for _, _, source in steps[strongest:]:
            arguments.update(source)
        config, _ = load_broker_config(**arguments)  # type: ignore[arg-type]
        value, origin, _ = steps[strongest]
        assert (config.int("num.partitions"), config.origin("num.partitions")) == (value, origin)
        assert config.source("num.partitions") is Source.STATIC_BROKER
    config, _ = load_broker_config()
    assert (config.int("num.partitions"), config.origin("num.partitions")) == (1, "default")


def test_toml_in_every_spelling(tmp_path: Path) -> None:
    text = """
        "log.dir" = "/a"
        "log.dirs" = ["/b", "/c"]
        "auto.create.topics.enable" = false
        "log.cleaner.min.cleanable.ratio" = 0.25
        num.partitions = 9
        [log.retention]
        ms = 5
    """
    config, _ = load_broker_config(toml_file=write(tmp_path, "x.toml", text))
    assert config.log_dirs == (Path("/b"), Path("/c"))
    assert config.bool("auto.create.topics.enable") is False
    assert config.float("log.cleaner.min.cleanable.ratio") == 0.25
    assert (config.int("num.partitions"), config.retention_ms) == (9, 5)
    with pytest.raises(ConfigError, match="Write keys in quotes"):
        load_broker_config(toml_file=write(tmp_path, "y.toml", "broker.id = 1\nbroker.id.x = 2"))
    with pytest.raises(ConfigError, match="a datetime cannot be the value of a setting"):
        load_broker_config(
            toml_file=write(tmp_path, "z.toml", "num.partitions = 2020-01-01T00:00:00")
        )


@given(st.text(st.sampled_from("ab.-_"), min_size=1, max_size=12))
def test_a_variable_leads_back_to_its_key(key: str) -> None:
    """The rule is ambiguous only where separators touch, which no key does."""
    if any(first in ".-_" and second in ".-_" for first, second in pairwise(key)):
        return
    assert key_of_variable(variable_name(key)) == key


def test_every_key_has_a_variable_of_its_own() -> None:
    assert variable_name("log.retention.ms") == "TIDEMILL_LOG_RETENTION_MS"
    assert variable_name("listener.name.a-b_c.x") == "TIDEMILL_LISTENER_NAME_A___B__C_X"
    assert {key_of_variable(variable_name(name)) for name in BROKER_KEYS} == set(BROKER_KEYS)


def test_a_variable_that_is_told_of_starts_no_broker_badly() -> None:
    """Each name in the documents, the scripts and the code is a broker's key, or left alone."""
    named = {name for path in TELLING for name in VARIABLE.findall(path.read_text())}
    assert len(named) > 12
    keys = {variable_name(key) for key in BROKER_KEYS}
    assert not named - keys - OTHER_VARIABLES
    others = dict.fromkeys((named - keys) | OTHER_VARIABLES, "x")
    assert list(read_environment(others)) == []


def test_no_broker_key_is_lost_among_other_variables() -> None:
    assert not {variable_name(key) for key in BROKER_KEYS} & OTHER_VARIABLES


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    file = write(tmp_path, "s.properties", "num.partition=1\nreplica.lag.max.messages=4\n")
    with pytest.raises(ConfigError) as caught:
        load_broker_config(
            properties_file=file,
            environ={"TIDEMILL_NUM_PARTITIONS": "zero"},
            overrides={"retention.ms": "1"},
        )
    assert caught.value.message.splitlines() == [
        "s.properties:1: Unknown key num.partition. Did you mean num.partitions?",
        "s.properties:2: replica.lag.max.messages no longer exists:"
        " use `replica.lag.time.max.ms`: lag is measured in time",
        "$TIDEMILL_NUM_PARTITIONS: Invalid value zero for configuration num.partitions:"
        " Not a number of type INT",
        "--set: retention.ms is a topic's setting, not a broker's. Did you mean log.retention.ms?",
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("process.roles=controller", "use broker,controller"),
        ("authorizer.class.name=org.example.Rules", "open to all"),
        ("listeners=SSL://:9092", "TLS and SASL cannot be served yet"),
        ("log.retention.ms=0", "must be unlimited (-1)"),
        ("producer.type=async", "today's clients call it `linger.ms`"),
        ("password.encoder.secret=hunter2", "no longer exists"),
        ("leader.replication.throttled.rate=5", "only on a running broker"),
        ("listener.name.x.nonsense=1", "must end in a broker key"),
    ],
)
def test_settings_that_no_broker_starts_with(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(overrides=[setting])
    assert message in caught.value.message
    assert "hunter2" not in caught.value.message


def test_settings_of_plug_ins_and_single_listeners_are_ignored_aloud() -> None:
    names = ["rsm.config.bucket", "listener.name.x.ssl.key.password", "ssl.client.auth"]
    _, warnings = load_broker_config(
        overrides={names[0]: "x", names[1]: "hunter2", names[2]: "none"}
    )
    assert warnings == [f"Not supported, and ignored: {', '.join(sorted(names))}."]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_broker_config(properties_file=tmp_path / "absent.properties")
    large = write(tmp_path, "large.properties", "#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="is it a settings file"):
        load_broker_config(properties_file=large)
    with pytest.raises(ConfigError, match="--set takes KEY=VALUE"):
        load_broker_config(overrides=["num.partitions"])


def test_a_file_is_checked_line_by_line(tmp_path: Path) -> None:
    text = "num.partitions=1\nnum.partitions=2\nlog.retention.hour=3\nnode.id=x\nport=9092\n"
    problems = check_file(write(tmp_path, "server.properties", text))
    assert [(each.line, each.key, each.suggestion) for each in problems] == [
        (2, "num.partitions", None),
        (3, "log.retention.hour", "log.retention.hours"),
        (4, "node.id", None),
        (5, "port", None),
    ]


def test_a_check_sees_the_file_as_a_whole(tmp_path: Path) -> None:
    assert check_file(write(tmp_path, "good.properties", "node.id=1\n")) == []
    old = write(tmp_path, "old.properties", "broker.id=0\nzookeeper.connect=localhost:2181\n")
    assert check_file(old) == []
    both = f"zookeeper.connect=localhost:2181\nstore.url=sqlite:///{tmp_path}/s.db\n"
    (problem,) = check_file(write(tmp_path, "both.properties", both))
    assert (problem.line, problem.key) == (1, "zookeeper.connect")
    assert "keep one of them" in problem.message
    warned = check_file(write(tmp_path, "w.toml", '"num.io.threads" = 4\n'))
    assert [(each.is_warning, each.line, each.key) for each in warned] == [
        (True, 1, "num.io.threads")
    ]
    kraft = "process.roles=broker,controller\ncontroller.quorum.voters=1@h:1\nnode.id=1\n"
    warned = check_file(write(tmp_path, "k.properties", kraft + "ssl.cipher.suites=x\n"))
    assert [(each.is_warning, each.line, each.key) for each in warned] == [
        (True, 1, "process.roles"),
        (True, 2, "controller.quorum.voters"),
        (True, 4, "ssl.cipher.suites"),
    ]
    (broken,) = check_file(write(tmp_path, "broken.toml", "= 1"))
    assert isinstance(broken, Problem)
    clash = check_file(write(tmp_path, "clash.properties", "node.id=1\nbroker.id=2\n"))
    assert "`node.id` to the same value" in clash[0].message


def test_explain_tells_all() -> None:
    config, _ = load_broker_config(overrides={"log.retention.hours": "5"})
    told = explain("log.retention.hours", config)
    assert (told.current, told.origin, told.default, told.unit) == ("5", "--set", "168", "hours")
    assert explain("num.recovery.threads.per.data.dir", config).default_2_8 == "1"
    assert explain("listeners", config).kafka_default == "PLAINTEXT://:9092"
    topic = explain("max.message.bytes", config)
    assert (topic.scope, topic.related, topic.current) == (
        "topic",
        ("message.max.bytes",),
        "1048588",
    )
    assert explain("leader.replication.throttled.rate", config).status == "supported"
    limit = explain("max.connections", config)
    assert limit.default == limit.current
    assert limit.kafka_default == "2147483647"
    for name in BROKER_KEYS:
        assert explain(name, config).meaning
    with pytest.raises(ConfigError, match=r"Did you mean log\.retention\.ms"):
        explain("log.retention.mss", config)
    with pytest.raises(ConfigError, match=r"no longer exists: records are always stored"):
        explain("message.format.version", config)


def test_effective_lists_every_key_and_hides_secrets() -> None:
    config, _ = load_broker_config(
        overrides={"ssl.key.password": "hunter2", "listener.name.x.ssl.key.password": "hunter2"}
    )
    listed = {each.name: each for each in effective(config)}
    assert set(BROKER_KEYS) < set(listed)
    assert listed["ssl.key.password"].value == "[hidden]"
    assert listed["num.partitions"].is_default
    assert "hunter2" not in repr(listed)


@pytest.mark.parametrize("limit", [64, 100, 256, 1024, 4096, 1 << 20])
def test_connections_and_log_files_leave_handles_for_the_rest(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    shares = derived_defaults()
    connections, files = int(shares["max.connections"]), int(shares["log.open.files.max"])
    assert min(connections, files) >= 16
    assert connections + files + 32 <= limit
    assert connections <= limit // 2
