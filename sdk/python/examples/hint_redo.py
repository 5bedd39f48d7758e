"""Turns a request to do it again into advice for the teacher."""

from clawhost_sdk import turn_of, unsupported, user_text
from clawhost_sdk.hints import hint, no_hint
from wit_world import exports

SIGNS = ("wrong", "again", "instead")


class HintExtractor(exports.HintExtractor):
    def extract(self, trajectory, turn_index):
        turn = turn_of(trajectory, turn_index)
        if not turn.next_state:
            raise unsupported("nothing followed the reply")
        said = user_text(turn)
        if not any(sign in said.lower() for sign in SIGNS):
            return no_hint()
        return hint(f"Afterwards the user said: {said}", confidence=0.5)
