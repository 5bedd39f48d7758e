// The policy gradient with the ratio to the policy that sampled, without clipping.

export const loss = {
  describe() {
    return { differentiable: { logprob: true }, references: { old: true }, k: 0 };
  },

  evaluate(batch) {
    // The step's size, not the microbatch's: a step cut in two adds up to the same loss.
    const scale = 1 / Math.max(Number(batch.stepTokens), 1);
    const partials = batch.logprob.map((logprob, i) => {
      if (batch.mask[i] === 0) return 0;
      return -batch.advantages[i] * Math.exp(logprob - batch.oldLogprob[i]) * scale;
    });
    const sum = partials.reduce((total, partial) => total + partial, 0);
    return { loss: sum, dLogprob: partials, dTopk: [], dEntropy: [], metrics: [] };
  },
};
