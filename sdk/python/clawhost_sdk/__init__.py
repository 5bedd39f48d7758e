"""Write a clawhost plugin in Python.

A plugin is one module with one class, named after what it exports: `Judge`, `GroupJudge`,
`HintExtractor`, `Filter`, `Loss`, `PairLoss`, `Advantage`, `Gate`, or `Session` for an environment. Its base class and the types
of the contract come from `wit_world`, which the build generates from the folder `wit`; this package
adds what is needed to read conversations and to make answers.

    from clawhost_sdk import turn_of, user_text, verdict
    from wit_world import exports

    class Judge(exports.Judge):
        def score_turn(self, trajectory, turn_index):
            turn = turn_of(trajectory, turn_index)
            return verdict(1.0 if "thank" in user_text(turn).lower() else 0.0, "looked for thanks")

A fresh instance answers each call: nothing that is kept in a variable reaches the next one. An
exception that is not made by `unsupported` and its siblings is a defect: it gives no verdict, and the
error `internal` with the lines that led to it.
"""

import json
import re
from typing import Any, Iterable, Mapping, Optional

from componentize_py_types import Err
from wit_world.imports import context
from wit_world.imports.types import (
    Message,
    Metric,
    Part_Text,
    PluginError_Denied,
    PluginError_Internal,
    PluginError_InvalidInput,
    PluginError_Transient,
    PluginError_Unsupported,
    Role,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
    Verdict,
    Vote,
)

__all__ = [
    "Message",
    "Metric",
    "Role",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "Turn",
    "Verdict",
    "Vote",
    "count_words",
    "denied",
    "internal",
    "invalid_input",
    "last_request",
    "majority",
    "message",
    "setting",
    "text",
    "tool_results",
    "transient",
    "turn_of",
    "unsupported",
    "user_text",
    "verdict",
    "vote",
]

# The Unicode property White_Space. `str.split()` also splits at four control characters, which
# would make this SDK count other words than those for the other languages.
_WHITE_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def text(message: Message) -> str:
    """The visible text of a message: all text parts, joined by newlines."""
    return "\n".join(part.value for part in message.content if isinstance(part, Part_Text))


def turn_of(trajectory: Trajectory, index: int) -> Turn:
    """The turn that a call is about. Raises an invalid-input error when there is none."""
    if index < len(trajectory.turns):
        return trajectory.turns[index]
    raise invalid_input(f"turn {index} of a trajectory with {len(trajectory.turns)} turns")


def user_text(turn: Turn) -> str:
    """What the user wrote after the reply, all messages joined by newlines."""
    return "\n".join(text(message) for message in turn.next_state if message.role == Role.USER)


def last_request(turn: Turn) -> str:
    """The last thing that the user wrote before the reply; empty when there is none."""
    for message in reversed(turn.prompt):
        if message.role == Role.USER:
            return text(message)
    return ""


def tool_results(turn: Turn) -> list[str]:
    """Texts of the tool results that followed the reply."""
    return [text(message) for message in turn.next_state if message.role == Role.TOOL]


def count_words(string: str) -> int:
    """Words between Unicode white space."""
    return sum(1 for word in _WHITE_SPACE.split(string) if word)


def message(role: Role, string: str) -> Message:
    """A message of one text part."""
    return Message(role, [Part_Text(string)], [], None, None)


def vote(score: float, rationale: str) -> Vote:
    """One opinion behind a verdict: a finite score in the range of the reward."""
    return Vote(score, rationale)


def verdict(
    reward: float,
    rationale: str,
    *,
    accept: bool = True,
    votes: Iterable[Vote] = (),
    metrics: Optional[Mapping[str, float]] = None,
) -> Verdict:
    """A verdict. The reward is finite and from -1 to 1, unless the operator widened the range.

    `accept=False` keeps the turn out of training and in the record. `metrics` are finite numbers
    for the run's metrics; nothing trains on them.
    """
    named = [Metric(name, value) for name, value in (metrics or {}).items()]
    return Verdict(reward, accept, list(votes), rationale, named)


def majority(votes: Iterable[Vote]) -> Verdict:
    """The majority of votes: 1 when more are positive than negative, -1 when fewer, else 0.

    Votes of 0 do not count. The rationale is that of the votes on the winning side.
    """
    votes = list(votes)
    up = sum(1 for vote in votes if vote.score > 0)
    down = sum(1 for vote in votes if vote.score < 0)
    reward = (up > down) - (up < down)
    reasons = [
        vote.rationale
        for vote in votes
        if vote.score * reward > 0 or (reward == 0 and up == 0)
    ]
    return verdict(
        float(reward),
        "; ".join(reasons) if reasons else f"{up} for, {down} against",
        votes=votes,
    )


def setting(key: str, default: Any = None) -> Any:
    """A setting of this plugin from the operator's configuration, decoded from JSON."""
    found = context.setting(key)
    return default if found is None else json.loads(found)


def unsupported(reason: str) -> Err:
    """To raise: there is nothing to judge. The turn gets no verdict, which is not a reward of 0."""
    return Err(PluginError_Unsupported(reason))


def invalid_input(reason: str) -> Err:
    """To raise: the input breaks this plugin's contract; the sample is quarantined."""
    return Err(PluginError_InvalidInput(reason))


def denied(reason: str) -> Err:
    """To raise: a host capability was refused or is out of budget."""
    return Err(PluginError_Denied(reason))


def transient(reason: str) -> Err:
    """To raise: worth trying again."""
    return Err(PluginError_Transient(reason))


def internal(reason: str) -> Err:
    """To raise: a defect in this plugin."""
    return Err(PluginError_Internal(reason))
