import * as plugin from "../../plugin.js";
import { wrapExports } from "./guard.js";

const log = null;

export const { judge, groupJudge, hintExtractor, filter, loss, pairLoss, advantage, gate, environment } =
  wrapExports(plugin, log);
