import * as plugin from "../../plugin.js";
import { entry } from "./guard.js";

const log = null;

export const { judge, groupJudge, hintExtractor, loss, advantage, environment } = entry(plugin, log);
