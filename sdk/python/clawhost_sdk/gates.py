"""What a gate reads and answers. Only plugins of that kind can import this module."""

from typing import Mapping, Optional

from wit_world.exports.gate import Candidate, Decision
from wit_world.imports.types import Metric

__all__ = ["Candidate", "Decision", "metric_of", "publish", "reject"]


def metric_of(candidate: Candidate, name: str) -> Optional[float]:
    """The metric of this name; None if the step does not have it."""
    for metric in candidate.metrics:
        if metric.name == name:
            return metric.value
    return None


def publish(*, metrics: Optional[Mapping[str, float]] = None) -> Decision:
    """The adapter is published."""
    return Decision(True, "", _named(metrics))


def reject(reason: str, *, metrics: Optional[Mapping[str, float]] = None) -> Decision:
    """The adapter is discarded, for this reason."""
    return Decision(False, reason, _named(metrics))


def _named(metrics: Optional[Mapping[str, float]]) -> list[Metric]:
    return [Metric(name, value) for name, value in (metrics or {}).items()]
