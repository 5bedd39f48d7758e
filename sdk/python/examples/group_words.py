"""Compares the replies to one prompt: the longest wins, the shortest loses."""

from clawhost_sdk import count_words, text, unsupported, verdict
from wit_world import exports


class GroupJudge(exports.GroupJudge):
    def score_group(self, group):
        if any(not trajectory.turns for trajectory in group):
            raise unsupported("a trajectory without turns")
        counts = [count_words(text(trajectory.turns[-1].response)) for trajectory in group]
        return [
            verdict(float((words == max(counts)) - (words == min(counts))), f"{words} words")
            for words in counts
        ]
