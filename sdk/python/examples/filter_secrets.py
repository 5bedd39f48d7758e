"""Keeps turns out of training that contain what looks like a credential."""

from clawhost_sdk import text, turn_of
from clawhost_sdk.filters import drop, keep
from wit_world import exports

SIGNS = ("-----BEGIN", "password:", "api_key", "Bearer ")


class Filter(exports.Filter):
    def decide(self, trajectory, turn_index, reward):
        turn = turn_of(trajectory, turn_index)
        for message in [*turn.prompt, turn.response, *turn.next_state]:
            for sign in SIGNS:
                if sign in text(message):
                    return drop(f'the text contains "{sign}"')
        return keep()
