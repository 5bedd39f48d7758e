"""The policy gradient with the ratio to the policy that sampled, without clipping."""

from math import exp

from wit_world import exports
from wit_world.exports.loss import Gradient, Inputs, References, Requirements


class Loss(exports.Loss):
    def describe(self):
        return Requirements(Inputs.LOGPROB, References.OLD, 0)

    def evaluate(self, batch):
        # The step's size, not the microbatch's: a step cut in two adds up to the same loss.
        scale = 1 / max(batch.step_tokens, 1)
        tokens = zip(batch.mask, batch.advantages, batch.logprob, batch.old_logprob)
        partials = [
            -advantage * exp(logprob - old) * scale if trains else 0.0
            for trains, advantage, logprob, old in tokens
        ]
        return Gradient(sum(partials), partials, [], [], [])
