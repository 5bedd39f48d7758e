"""The smallest judge: longer replies are better, up to a hundred words."""

from clawhost_sdk import count_words, text, turn_of, verdict
from wit_world import exports


class Judge(exports.Judge):
    def score_turn(self, trajectory, turn_index):
        turn = turn_of(trajectory, turn_index)
        words = count_words(text(turn.response))
        return verdict(min(words, 100) / 50 - 1, f"{words} words")
