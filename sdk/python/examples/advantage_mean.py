"""How much better than its group each sequence is."""

from wit_world import exports
from wit_world.exports.advantage import Estimate


class Advantage(exports.Advantage):
    def compute(self, sequences):
        groups = {}
        for sequence in sequences:
            groups.setdefault(sequence.group, []).append(sequence.reward)
        means = {group: sum(rewards) / len(rewards) for group, rewards in groups.items()}
        return Estimate([s.reward - means[s.group] for s in sequences], False, [])
