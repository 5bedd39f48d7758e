// Compares the replies to one prompt: the longest wins, the shortest loses.

import { countWords, text, unsupported, verdict } from "../clawhost.js";

export const groupJudge = {
  scoreGroup(group) {
    if (group.some((trajectory) => trajectory.turns.length === 0)) {
      throw unsupported("a trajectory without turns");
    }
    const counts = group.map((trajectory) => countWords(text(trajectory.turns.at(-1).response)));
    const most = Math.max(...counts);
    const fewest = Math.min(...counts);
    return counts.map((words) => {
      return verdict(Number(words === most) - Number(words === fewest), `${words} words`);
    });
  },
};
