// Notes on a recording and on predictions, in words.

import { number } from "./numbers.js";
import { coverageAt } from "./quantities.js";
import { state } from "./state.js";

// Features of the out-of-distribution warning (docs/serving.md) by name; others are residuals.
const REASONS = {
  fields: "its statistics",
  extremes: "its largest value",
  parameters: "its parameters",
  consistency: "how well it obeys its equations",
};

/** Show the notes on the recording and the runs. */
export function showBadges() {
  const { notes = [], predicted, stated, units = [] } = state.recording ?? {};
  const found = notes.map((note) => [`Recording: ${noteWords(note)}`, ""]);
  const assumed = [...new Set(units.filter((unit) => unit !== "1"))];
  // A run reports it too.
  if (stated && !stated.units && assumed.length && !state.runs.some(Boolean)) {
    found.push([`Recording: no unit is stated: assuming the model's, ${assumed.join(", ")}`, ""]);
  }
  if (predicted) found.unshift([`Recording: ${predicted}. It is not ground truth.`, "warn"]);
  const [, second] = state.runs;
  for (const run of state.runs.filter(Boolean)) {
    const of = second ? `${run.model.name}: ` : "";
    const add = (words, kind = "") => found.push([of + words, kind]);
    if (run.ood.length) add(...oodWords(run));
    if (run.low.length && state.frame <= run.start + run.low.length) add(intervalWords(run));
    if (run.consistency.length) {
      const least = Math.min(...run.consistency);
      const which = run.isForced ? "Least likely frame" : "Start";
      const words = `${which} obeys its equations: probability ${Math.round(100 * least)} %`;
      add(words, least < 0.5 ? "warn" : "good");
    }
    // The badge above reports it already.
    const others = run.notes.filter(({ code }) => code !== "ood-unresolved");
    for (const note of others) add(noteWords(note), "warn");
  }
  document.getElementById("badges").replaceChildren(
    ...found.map(([words, kind]) => {
      return Object.assign(document.createElement("li"), { textContent: words, className: kind });
    }),
  );
}

function noteWords({ text, remedy }) {
  return remedy ? `${text}; ${remedy}` : text;
}

/** [words, kind] of the out-of-distribution warning for the frames that were given. */
function oodWords({ ood, isForced, unknown }) {
  const flagged = ood.filter(({ isFlagged }) => isFlagged);
  const oddest = (flagged.length ? flagged : ood).reduce((a, b) => (b.p < a.p ? b : a));
  const { p, reason, lowest, isLimited } = oddest;
  const partly = isLimited ? "; many points are unknown, so only part of it was checked" : "";
  if (flagged.length) {
    const where = isForced ? ` at ${flagged.length} of ${ood.length} frames` : "";
    const what = reason && (REASONS[reason] ?? residualWords(reason));
    const why = reason ? ` Most unusual: ${what} (${reason}).` : "";
    const found = `unlike the training data (p = ${number(p)}${partly}).`;
    const advice = "Do not rely on the prediction intervals.";
    return [`Out of distribution${where}: ${found}${why} ${advice}`, "warn"];
  }
  if (lowest > 0.05) {
    const words = `the calibration is too small for a p below ${number(lowest)}`;
    return [`No out-of-distribution warning is possible: ${words}`, ""];
  }
  const names = unknown.join(", ");
  const without = names ? `; checked without ${names}, which was not given` : "";
  const words = `In distribution: like the training data (p = ${number(p)}${partly}${without})`;
  return [words, without ? "" : "good"];
}

function residualWords(term) {
  return term.endsWith(" peak")
    ? `the largest residual of ${term.slice(0, -5)}`
    : `the residual of ${term}`;
}

function intervalWords(run) {
  const inside = coverageAt(run, state.frame);
  const level = Math.round(100 * run.level);
  if (inside !== null) {
    const share = Math.round(100 * inside);
    return `${level} % interval covers the truth at ${share} % of the points of this frame`;
  }
  return `${level} % interval for frames ${run.start + 1} to ${run.start + run.low.length}`;
}
