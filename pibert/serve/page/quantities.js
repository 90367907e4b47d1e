// The quantity of each panel at a frame: values, unit and colour scale.

import { makeScale } from "./colours.js";
import {
  channel,
  component,
  difference,
  largeSize,
  masked,
  range,
  velocityOf,
  vorticity,
} from "./fields.js";
import { state, update } from "./state.js";

/** All quantities, in the order of the panels; `both`: of both models. */
export const QUANTITIES = [
  { id: "truth", label: "Truth" },
  { id: "prediction", label: "Prediction", both: true },
  { id: "error", label: "Error (prediction − truth)", title: "Error", both: true },
  { id: "vorticity", label: "Vorticity" },
  { id: "interval", label: "Prediction interval (±)", title: "Interval, ±" },
  { id: "residual", label: "PDE residual" },
  { id: "bias", label: "Attention bias" },
];

/** The title of the recording; a predicted one is not ground truth. */
export function truthName() {
  return state.recording?.predicted ? "recording" : "truth";
}

/** Names of the panels if the recording is not ground truth. */
const UNTRUE = { truth: "Recording (predicted)", error: "Difference (prediction − recording)" };

export function labelOf(id) {
  const untrue = state.recording?.predicted ? UNTRUE[id] : null;
  return untrue ?? QUANTITIES.find((own) => own.id === id).label;
}

function titleOf({ id, label, title = label }) {
  if (!state.recording?.predicted || !(id in UNTRUE)) return title;
  return id === "error" ? "Difference" : UNTRUE[id];
}

/** The selected panels: {key, id, run (0, 1 or null), title}. */
export function chosenPanels() {
  const [first, second] = state.runs;
  const named = (text, n) => (second ? `${text}, ${state.runs[n].model.name}` : text);
  const panels = [];
  for (const own of QUANTITIES) {
    const { id, both } = own;
    if (!state.shown.has(id)) continue;
    const runs = id === "truth" ? [null] : both && second ? [0, 1] : [0];
    if (id === "vorticity") {
      const title = `Vorticity of the ${truthName()}`;
      panels.push({ key: "vorticity", id, run: null, title });
      if (!first) continue;
      for (const n of second ? [0, 1] : [0]) {
        panels.push({ key: `vorticity${n}`, id, run: n, title: named("Vorticity predicted", n) });
      }
      continue;
    }
    for (const n of runs) {
      const title = n === null ? titleOf(own) : named(titleOf(own), n);
      panels.push({ key: `${id}${n ?? ""}`, id, run: n, title });
    }
  }
  return panels;
}

/** {values, unit, scale, note}; without values, the note gives the reason. */
export function quantity({ id, run: n }, index) {
  const { recording } = state;
  const run = n === null ? null : state.runs[n];
  if (n !== null && !run) return nothing("Press Run to predict.");
  const found = MAKERS[id](recording, run, index);
  if (!found.values) return found;
  if (state.scaleToFrame) {
    const size = id === "vorticity" ? largeSize(found.values) : null;
    const [low, high] = size === null ? range(found.values) : [-size, size];
    found.scale = makeScale(found.kind === "diagnostic" ? 0 : low, high, found.kind);
  }
  return found;
}

const ENDED = "The recording ends before this frame.";

function nothing(note) {
  return { values: null, note };
}

function notMade(run, index) {
  if (index <= run.start) {
    return nothing(`Given to the model: the prediction begins at frame ${run.start + 1}.`);
  }
  return nothing(state.isRunning ? "Waiting for this frame." : "No prediction of this frame.");
}

function unitOf(recording) {
  return recording.unit(state.component);
}

/** The chosen component, of the truth or of a run. */
export function valuesAt(recording, run, index) {
  const frame = run ? run.at(index) : recording.at(index);
  if (!frame) return null;
  const channels = run ? run.channels : recording.channels;
  const values = component(frame, channels, state.component, recording.cells);
  return masked(values, (run ?? recording).known(index));
}

export function velocityAt(recording, run, index) {
  const frame = run ? run.at(index) : recording.at(index);
  if (!frame) return null;
  const channels = run ? run.channels : recording.channels;
  const both = velocityOf(channels).map((name) => channel(frame, channels, name, recording.cells));
  if (both.length < 2) return null;
  return both.map((values) => masked(values, (run ?? recording).known(index)));
}

function vorticityAt(recording, run, index) {
  const both = velocityAt(recording, run, index);
  return both && vorticity(...both, recording.shape, recording.dx, recording.dy);
}

/** Error of a run at a frame, or null. */
function errorAt(recording, run, index) {
  const [made, recorded] = [valuesAt(recording, run, index), valuesAt(recording, null, index)];
  return made && recorded ? difference(made, masked(recorded, recording.measured(index))) : null;
}

/** The chosen component at one point, of the truth or of a run; NaN if unknown. */
export function pointAt(run, index, position) {
  const { recording } = state;
  const frame = run ? run.at(index) : recording.at(index);
  if (!frame || !(run ?? recording).known(index)[position]) return NaN;
  const channels = run ? run.channels : recording.channels;
  const value = (name) => frame[channels.indexOf(name) * recording.cells + position] ?? NaN;
  if (state.component !== "speed") return value(state.component);
  return Math.hypot(...velocityOf(channels).map(value));
}

/** A channel that is the same at all points, of the truth or of a run. */
export function uniformAt(run, index, name) {
  const { recording } = state;
  const frame = run ? run.at(index) : recording.at(index);
  if (!frame) return NaN;
  const position = (run ?? recording).known(index).indexOf(1);
  const channels = run ? run.channels : recording.channels;
  return frame[channels.indexOf(name) * recording.cells + position] ?? NaN;
}

/** Ends of the prediction interval of a channel at one point. */
export function intervalAt(run, index, position) {
  const interval = run.intervalOf(index);
  const own = run.channels.indexOf(state.component) * state.recording.cells + position;
  return interval ? [interval.low[own] ?? NaN, interval.high[own] ?? NaN] : [NaN, NaN];
}

/** The share of measured points whose truth lies within the interval, or null. */
export function coverageAt(run, index) {
  if (run.recording.predicted) return null;
  const [interval, truth] = [run.intervalOf(index), run.truth(index)];
  if (!interval || !truth) return null;
  let [inside, count] = [0, 0];
  for (let i = 0; i < truth.length; i++) {
    if (!Number.isFinite(truth[i] + interval.low[i] + interval.high[i])) continue;
    count += 1;
    if (truth[i] >= interval.low[i] && truth[i] <= interval.high[i]) inside += 1;
  }
  return count ? inside / count : null;
}

export function intervalNote(run) {
  return `Prediction intervals are for ${run.channels.join(" and ")}: choose one under Component.`;
}

/** Half the width of the prediction interval; the speed has none. */
function halfWidthAt(recording, run, index) {
  const interval = run.intervalOf(index);
  if (!interval) return null;
  const [low, high] = [interval.low, interval.high].map((frame) =>
    channel(frame, run.channels, state.component, recording.cells),
  );
  return low && low.map((value, i) => (high[i] - value) / 2);
}

/** Range of a quantity over all frames so far; only new frames are read. */
function extremes(holder, key, first, count, ends) {
  const found = (holder.extremes[key] ??= { next: first, low: Infinity, high: -Infinity });
  for (; found.next < first + count; found.next++) {
    const [low, high] = ends(found.next);
    found.low = Math.min(found.low, low);
    found.high = Math.max(found.high, high);
  }
  return found;
}

function truthScale(recording) {
  const ends = (index) => range(valuesAt(recording, null, index) ?? []);
  const { low, high } = extremes(recording, state.component, 0, recording.count, ends);
  return makeScale(low, high, "field");
}

/** Of both models, so that their panels are comparable. */
function runsScale(key, kind, make) {
  let most = 0;
  for (const run of state.runs.filter(Boolean)) {
    const ends = (index) => {
      const values = make(run, index);
      const [low, high] = values ? range(values) : [0, 0];
      return [0, Math.max(Math.abs(low), Math.abs(high))];
    };
    const own = `${key} ${state.component}`;
    const found = extremes(run, own, run.start + 1, run.frames.length, ends);
    most = Math.max(most, Number.isFinite(found.high) ? found.high : 0);
  }
  return makeScale(kind === "signed" ? -most : 0, most, kind);
}

const MAKERS = {
  truth(recording, run, index) {
    const values = valuesAt(recording, null, index);
    if (!values) return nothing(ENDED);
    return { values, unit: unitOf(recording), scale: truthScale(recording), kind: "field" };
  },

  prediction(recording, run, index) {
    if (!run.at(index)) return notMade(run, index);
    const values = valuesAt(recording, run, index);
    if (!values) return nothing(`The model does not predict ${state.component}.`);
    return { values, unit: unitOf(recording), scale: truthScale(recording), kind: "field" };
  },

  error(recording, run, index) {
    if (!run.at(index)) return notMade(run, index);
    const values = errorAt(recording, run, index);
    if (!values) return nothing("There is no ground truth to compare with.");
    const scale = runsScale("error", "signed", (own, at) => errorAt(recording, own, at));
    return { values, unit: unitOf(recording), scale, kind: "signed" };
  },

  vorticity(recording, run, index) {
    if (run && !run.at(index)) return notMade(run, index);
    if (!run && !recording.at(index)) return nothing(ENDED);
    const values = vorticityAt(recording, run, index);
    if (!values) return nothing("Vorticity needs two velocity components.");
    const ends = (at) => [0, largeSize(vorticityAt(recording, null, at) ?? [])];
    const most = extremes(recording, "vorticity", 0, recording.count, ends).high;
    const unit = recording.timeUnit ? `1/${recording.timeUnit}` : "";
    return { values, unit, scale: makeScale(-most, most, "signed"), kind: "signed" };
  },

  interval(recording, run, index) {
    if (!run.model.calibration) return nothing(`${run.model.name} is not calibrated.`);
    if (!run.low.length) return nothing("Choose a prediction interval and press Run.");
    if (!run.channels.includes(state.component)) return nothing(intervalNote(run));
    if (index <= run.start) return notMade(run, index);
    const values = halfWidthAt(recording, run, index);
    if (!values) {
      const last = run.start + run.low.length;
      return nothing(`No prediction interval after frame ${last}: the calibration ends there.`);
    }
    const scale = runsScale("interval", "diagnostic", (own, at) => halfWidthAt(recording, own, at));
    return { values, unit: unitOf(recording), scale, kind: "diagnostic" };
  },

  residual(recording, run, index) {
    return explained(run, index, "No residual: the model states no equations.", (entry) => {
      const group = entry.isMade ? "prediction_residuals." : "input_residuals.";
      const names = Object.keys(entry.found.arrays).filter((name) => name.startsWith(group));
      const terms = names.map((name) => name.slice(group.length));
      run.terms = terms;
      const term = terms.includes(state.term) ? state.term : terms[0];
      return { values: entry.found.arrays[group + term]?.data, key: `residual ${term}`, term };
    });
  },

  bias(recording, run, index) {
    return explained(run, index, "This kind of model has no attention bias.", (entry) => ({
      values: entry.found.arrays.bias_map?.data,
      key: "bias",
    }));
  },
};

function explained(run, index, missing, pick) {
  const entry = run.explain(index);
  if (entry.error) return nothing(entry.error);
  if (!entry.found) {
    entry.done.then(() => update({ explained: state.explained + 1 }));
    return nothing("Waiting for the model.");
  }
  const { values, key, term } = pick(entry);
  if (!values) return nothing(missing);
  // One scale for all frames read so far.
  const seen = (run.extremes[key] ??= { high: 0 });
  seen.high = Math.max(seen.high, largeSize(values));
  const scale = makeScale(0, seen.high, "diagnostic");
  return { values, unit: "", term, scale, kind: "diagnostic" };
}
