import * as plugin from "../../plugin.js";
import { wrapExports } from "./guard.js";

const log = null;

export const { judge, groupJudge, hintExtractor, loss, advantage, environment } = wrapExports(plugin, log);
