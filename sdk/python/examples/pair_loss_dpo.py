"""A loss on preference pairs: DPO, -log sigmoid(beta * margin).

The margin is how much more than the base model the policy prefers the accepted reply, in nats. The setting `beta` (default
0.1) is the strength of the reference.
"""

from math import exp, log1p

from clawhost_sdk import setting
from wit_world import exports
from wit_world.exports.pair_loss import Evaluation, Gradient


def log_ratio(reply):
    tokens = zip(reply.mask, reply.logprob, reply.ref_logprob)
    return sum(policy - reference for trains, policy, reference in tokens if trains)


def partials(reply, slope):
    return [slope if trains else 0.0 for trains in reply.mask]


class PairLoss(exports.PairLoss):
    def evaluate(self, batch):
        beta = setting("beta", 0.1)
        gradients = []
        for pair in batch.pairs:
            margin = log_ratio(pair.chosen) - log_ratio(pair.rejected)
            # The derivative of the loss by the margin.
            slope = -beta / (1 + exp(beta * margin))
            loss = log1p(exp(-beta * margin))
            gradients.append(
                Gradient(loss, partials(pair.chosen, slope), partials(pair.rejected, -slope))
            )
        return Evaluation(gradients, [])
