// What the server and the models say of a recording and of their predictions, in words.

import { number } from "./numbers.js";
import { coverageAt } from "./quantities.js";
import { state } from "./state.js";

// Parts of the alarm (docs/serving.md) in words, by their names; all others are residuals.
const PARTS = {
  fields: "its statistics",
  extremes: "its largest value",
  parameters: "its parameters",
  consistency: "how well it obeys its equations",
};

/** Show what is said of the recording and of the runs. */
export function showBadges() {
  const { remarks = [], predicted } = state.recording ?? {};
  const found = remarks.map((remark) => [`Recording: ${remark}`, ""]);
  if (predicted) found.unshift([`Recording: ${predicted}. It is no truth to score by.`, "warn"]);
  const [, second] = state.runs;
  for (const run of state.runs.filter(Boolean)) {
    const of = second ? `${run.model.name}: ` : "";
    const add = (words, kind = "") => found.push([of + words, kind]);
    if (run.alarms.length) add(...alarmWords(run));
    if (run.low.length && state.frame <= run.start + run.low.length) add(barWords(run));
    if (run.consistency.length) {
      const least = Math.min(...run.consistency);
      const which = run.isForced ? "Least likely frame" : "Start";
      const words = `${which} obeys its equations: ${Math.round(100 * least)} % likely`;
      add(words, least < 0.5 ? "warn" : "good");
    }
    // What the badge of the alarm says need not be said twice.
    const others = run.remarks.filter((own) => !own.startsWith("no alarm can be raised"));
    for (const remark of others) add(remark, "warn");
  }
  document.getElementById("badges").replaceChildren(
    ...found.map(([words, kind]) => {
      return Object.assign(document.createElement("li"), { textContent: words, className: kind });
    }),
  );
}

/** [words, kind] for what the alarm makes of the frames that were given. */
function alarmWords({ alarms, isForced, unknown }) {
  const raised = alarms.filter(({ isRaised }) => isRaised);
  const oddest = (raised.length ? raised : alarms).reduce((a, b) => (b.p < a.p ? b : a));
  const { p, part, lowest, isLimited } = oddest;
  const partly = isLimited ? "; much is unknown, so only some of it was judged" : "";
  if (raised.length) {
    const where = isForced ? ` at ${raised.length} of ${alarms.length} frames` : "";
    const why = part ? ` Oddest: ${PARTS[part] ?? residualWords(part)} (${part}).` : "";
    const words = `Alarm${where}: unlike the training data (p = ${number(p)}${partly}).`;
    return [`${words}${why} Do not trust the bars.`, "warn"];
  }
  if (lowest > 0.05) {
    const words = `it tells no p below ${number(lowest)}`;
    return [`No alarm is possible: the calibration is too small, ${words}`, ""];
  }
  const names = unknown.join(", ");
  const untold = names ? `; judged without ${names}, which was not given` : "";
  const words = `No alarm: like the training data (p = ${number(p)}${partly}${untold})`;
  return [words, untold ? "" : "good"];
}

function residualWords(part) {
  return part.endsWith(" peak")
    ? `the largest residual of ${part.slice(0, -5)}`
    : `the residual of ${part}`;
}

function barWords(run) {
  const inside = coverageAt(run, state.frame);
  const level = Math.round(100 * run.level);
  if (inside !== null) {
    const share = Math.round(100 * inside);
    return `${level} % bars hold the truth at ${share} % of points of this frame`;
  }
  return `${level} % bars for frames ${run.start + 1} to ${run.start + run.low.length}`;
}
