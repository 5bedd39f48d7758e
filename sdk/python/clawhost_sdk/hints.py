"""What a hint extractor answers. Only plugins of that kind can import this module."""

from typing import Mapping, Optional

from wit_world.exports.hint_extractor import Extraction, Hint, Placement
from wit_world.imports.types import Metric

__all__ = ["Extraction", "Hint", "Placement", "hint", "no_hint"]


def hint(
    text: str,
    *,
    placement: Placement = Placement.LAST_USER,
    confidence: float = 1.0,
    metrics: Optional[Mapping[str, float]] = None,
) -> Extraction:
    """Advice for the teacher, appended to the last user message unless `placement` says else.

    `confidence` is finite and from 0 to 1.
    """
    return Extraction(Hint(text, placement, confidence), _named(metrics))


def no_hint(*, metrics: Optional[Mapping[str, float]] = None) -> Extraction:
    """The turn was read and teaches nothing."""
    return Extraction(None, _named(metrics))


def _named(metrics: Optional[Mapping[str, float]]) -> list[Metric]:
    return [Metric(name, value) for name, value in (metrics or {}).items()]
