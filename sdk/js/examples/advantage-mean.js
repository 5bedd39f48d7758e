// How much better than its group each sequence is.

export const advantage = {
  compute(sequences) {
    const groups = new Map();
    for (const { group, reward } of sequences) {
      const seen = groups.get(group) ?? { sum: 0, count: 0 };
      groups.set(group, { sum: seen.sum + reward, count: seen.count + 1 });
    }
    const values = sequences.map(({ group, reward }) => {
      const { sum, count } = groups.get(group);
      return reward - sum / count;
    });
    return { values, perToken: false, metrics: [] };
  },
};
