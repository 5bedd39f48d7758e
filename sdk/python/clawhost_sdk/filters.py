"""What a filter answers. Only plugins of that kind can import this module."""

from typing import Mapping, Optional

from wit_world.exports.filter import Decision
from wit_world.imports.types import Metric

__all__ = ["Decision", "drop", "keep"]


def keep(*, metrics: Optional[Mapping[str, float]] = None) -> Decision:
    """The turn may train."""
    return Decision(True, "", _named(metrics))


def drop(reason: str, *, metrics: Optional[Mapping[str, float]] = None) -> Decision:
    """The turn does not train, for this reason. Its text stays in the journal."""
    return Decision(False, reason, _named(metrics))


def _named(metrics: Optional[Mapping[str, float]]) -> list[Metric]:
    return [Metric(name, value) for name, value in (metrics or {}).items()]
