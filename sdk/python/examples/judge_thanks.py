"""Judges a reply by what followed it: thanks, a complaint, a tool that failed."""

from clawhost_sdk import majority, tool_results, turn_of, unsupported, user_text, vote
from wit_world import exports


class Judge(exports.Judge):
    def score_turn(self, trajectory, turn_index):
        turn = turn_of(trajectory, turn_index)
        if not turn.next_state:
            raise unsupported("nothing followed the reply")
        said = user_text(turn).lower()
        votes = []
        if "thank" in said:
            votes.append(vote(1.0, "the user gave thanks"))
        if "wrong" in said or "again" in said:
            votes.append(vote(-1.0, "the user asked for a change"))
        for result in tool_results(turn):
            if "error" in result.lower():
                votes.append(vote(-1.0, "a tool failed"))
        return majority(votes)
