"""Kafka's metadata versions and the features that go with them, for `kafka-storage`.

A KRaft cluster agrees on them in its log. Tidemill's has no such log: the tables are here to answer
`version-mapping` and `feature-dependencies`, and to check what `format` is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.cli.kafka.common import ToolError, out

METADATA = "metadata.version"
KRAFT = "kraft.version"

_FIRST_LEVEL = 7
_LAST_STEPS = zip(
    ("3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3", "4.4"),
    (0, 2, 2, 4, 0, 0, 3, 1, 1, 0, 0),
    strict=True,
)
_METADATA_VERSIONS = ["3.3-IV3"] + [
    f"{release}-IV{step}" for release, last in _LAST_STEPS for step in range(last + 1)
]
_LEVELS = {name: level for level, name in enumerate(_METADATA_VERSIONS, _FIRST_LEVEL)}
LATEST_STABLE = "4.3-IV0"

# feature: for each of its levels, the metadata version that brings it, or None for one that never
# comes by itself
_FEATURES: Mapping[str, tuple[str | None, ...]] = {
    KRAFT: ("3.3-IV3", "3.9-IV0"),
    "transaction.version": ("3.3-IV3", None, "4.0-IV2"),
    "group.version": ("3.3-IV3", "4.0-IV0"),
    "eligible.leader.replicas.version": ("3.3-IV3", "4.1-IV0"),
    "share.version": ("3.3-IV3", "4.2-IV0"),
    "streams.version": ("3.3-IV3", "4.2-IV1"),
}
_REQUIRES = {("eligible.leader.replicas.version", 1): "4.0-IV1"}


def metadata_version(text: str, *, unstable: bool = False) -> str:
    """The version that a text names: itself, or the last one of a release such as `4.0`."""
    names = _METADATA_VERSIONS[: None if unstable else _METADATA_VERSIONS.index(LATEST_STABLE) + 1]
    stable = [name for name in names if _LEVELS[name] <= _LEVELS[LATEST_STABLE]]
    of_release = [name for name in stable if name.startswith(f"{text}-")]
    if text in names or of_release:
        return text if text in names else of_release[-1]
    raise ToolError(
        f"Unknown metadata.version '{text}'. Supported metadata.version are: {', '.join(names)}"
    )


def print_mapping(release: str) -> None:
    """`version-mapping`: what a new cluster of this metadata version has."""
    level = _LEVELS[metadata_version(release, unstable=True)]
    out(f"{METADATA}={level} ({release})")
    for feature, levels in _FEATURES.items():
        brought = (at for at, by in enumerate(levels) if by is not None and _LEVELS[by] <= level)
        out(f"{feature}={max(brought)}")


def print_dependencies(texts: Iterable[str]) -> None:
    """`feature-dependencies`: what each of these levels needs."""
    for text in texts:
        feature, equals, number = text.partition("=")
        if not equals:
            raise ToolError(
                f"Invalid feature format: {text}. Expected format: 'feature=version' "
                "(e.g. 'group.version=1')"
            )
        try:
            level = int(number)
        except ValueError:
            raise ToolError(f"Invalid version format: {number} for feature {feature}") from None
        _print_dependency(feature, level)


def _print_dependency(feature: str, level: int) -> None:
    if feature == METADATA:
        out(f"{METADATA}={level} ({_name_of(level)}) has no dependencies.")
        return
    if feature not in _FEATURES:
        raise ToolError(f"Unknown feature: {feature}")
    if level not in range(len(_FEATURES[feature])):
        raise ToolError(f"Feature level {level} is not supported for feature {feature}")
    required = _REQUIRES.get((feature, level))
    if required is None:
        out(f"{feature}={level} has no dependencies.")
    else:
        out(f"{feature}={level} requires:\n    {METADATA}={_LEVELS[required]} ({required})")


def _name_of(level: int) -> str:
    if level - _FIRST_LEVEL not in range(len(_METADATA_VERSIONS)):
        raise ToolError(f"Unknown metadata.version {level}")
    return _METADATA_VERSIONS[level - _FIRST_LEVEL]


def parse_features(texts: Iterable[str]) -> dict[str, int]:
    """`--feature name=level` of `format`, each of them one that Kafka has."""
    found: dict[str, int] = {}
    for text in texts:
        feature, equals, number = (part.strip() for part in text.partition("="))
        if not equals:
            raise ToolError(f"Can't parse feature=level string {text}: equals sign not found.")
        try:
            found[feature] = int(number)
        except ValueError:
            raise ToolError(
                f"Can't parse feature=level string {text}: unable to parse {number} as a short."
            ) from None
        _check_feature(feature, found[feature])
    return found


def _check_feature(feature: str, level: int) -> None:
    if feature == METADATA:
        _name_of(level)
    elif feature not in _FEATURES:
        listed = ", ".join(sorted(_FEATURES))
        raise ToolError(f"Unsupported feature: {feature}. Supported features are: {listed}")
    elif level not in range(len(_FEATURES[feature])):
        raise ToolError(f"No feature:{feature} with feature level {level}")


def chosen_version(releases: list[str], features: Mapping[str, int]) -> str:
    """The metadata version that `format` is told to use, or the latest."""
    if releases and METADATA in features:
        raise ToolError(
            f"Use --release-version instead of --feature {METADATA}=X to avoid ambiguity."
        )
    if releases:
        return metadata_version(releases[-1])
    return _name_of(features[METADATA]) if METADATA in features else LATEST_STABLE
