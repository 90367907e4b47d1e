// A run: the predictions of one model for a recording, and their explanations.

import * as api from "./api.js";
import { masked, unitsIn } from "./fields.js";
import { number } from "./numbers.js";

const AT_ONCE = 8; // windows of a request where every step starts from the truth

/** Indices of the recording's channels that a model takes: by name, else by order. */
function channelsFor(model, recording) {
  const named = model.channels.map((name) => recording.channels.indexOf(name));
  return named.includes(-1) ? model.channels.map((_, i) => i) : named;
}

/** The reason why a model cannot run on a recording, or null. */
export function objection(model, recording) {
  if (!model || !recording) return "Choose a model and a recording.";
  const [own, found] = [model.channels.length, recording.channels.length];
  if (found < own) {
    return `${model.name} takes ${own} channels (${model.channels.join(", ")}), this has ${found}.`;
  }
  if (recording.count < model.history) {
    return `${model.name} takes ${model.history} frames at once, this has ${recording.count}.`;
  }
  for (const [name, wanted, stated] of unitsOf(model, recording)) {
    if (stated !== "1" && wanted !== "1" && stated !== wanted) {
      return `${model.name} takes ${name} in ${wanted}, this has ${stated}: convert the file.`;
    }
  }
  // Lengths and times in other units can be converted if velocities have a unit.
  const { length, time } = unitsIn(model.units[0]);
  const { grid, length_unit: ownLength, dt, time_unit: ownTime } = recording.stated ?? {};
  const others = [
    [grid?.dx, ownLength, length],
    [dt, ownTime, time],
  ].filter(([value, own, wanted]) => value && named(own) && wanted && own !== wanted);
  if (others.length) {
    const [[, own, wanted]] = others;
    const words = `${model.name} works in ${wanted}, this file in ${own}`;
    return `${words}: state the unit of its velocities, or convert it.`;
  }
  return null;
}

function named(unit) {
  return unit && unit !== "1";
}

/** Name, unit for the model and unit in the recording of each channel that a model takes. */
function unitsOf(model, recording) {
  const positions = channelsFor(model, recording);
  return model.channels.map((name, i) => [name, model.units[i], recording.units[positions[i]]]);
}

/** The unit of a model's time step: that of its velocities, or a like recording's; else "". */
export function stepUnit(model, recording) {
  const own = unitsIn(model.units[0]).time;
  const isLike = unitsOf(model, recording).every(([, wanted, stated]) => wanted === stated);
  return own ?? (isLike ? recording.timeUnit : "");
}

/** Doubts about a prediction that the server cannot know of. */
function doubts(model, recording, unknown) {
  const found = unknown.length
    ? [`${unknown.join(", ")} is not given: the model predicts without it`]
    : [];
  const { dt, hasSpacing, stated, stride } = recording;
  const missing = model.channels.filter((name) => !recording.channels.includes(name));
  if (missing.length) {
    const taken = recording.channels.slice(0, model.channels.length).join(", ");
    found.push(`there is no channel ${missing.join(", ")}: channels are used in order, ${taken}`);
  }
  if (dt && model.dt && Math.abs(dt * stride - model.dt) > 0.01 * model.dt) {
    const words = `the frames are ${number(dt)} apart, the model steps by ${number(model.dt)}`;
    found.push(`${words}: it sees the flow with another time step`);
  } else if (stride > 1) {
    const words = `the frames are ${number(dt)} apart, the model steps by ${number(model.dt)}`;
    found.push(`${words}: every ${ordinal(stride)} frame is used`);
  }
  if (stated.uneven) {
    found.push("the frames are not evenly spaced in time: each counts as one model step");
  }
  const silent = [
    hasSpacing ? "" : "spacing",
    stated.units ? "" : "units",
    stated.dt || stated.uneven || !model.dt ? "" : "time step",
  ].filter(Boolean);
  if (silent.length) {
    found.push(`the file states no ${silent.join(", no ")}: the model's is used`);
  }
  if (stated.units) {
    const bare = unitsOf(model, recording).filter(([, own, stated]) => own !== stated);
    const wanted = [...new Set(bare.map(([, own]) => (own === "1" ? "no unit" : own)))].join(", ");
    const names = bare.map(([name]) => name).join(", ");
    if (bare.length) found.push(`${names}: assumed to be in ${wanted}, as for the model`);
  }
  return found;
}

function ordinal(count) {
  return `${count}${{ 2: "nd", 3: "rd" }[count] ?? "th"}`;
}

export class Run {
  /** settings: start (the newest frame given), steps, isForced, level, parameters. */
  constructor(model, recording, settings) {
    Object.assign(this, { model, recording, ...settings });
    this.positions = channelsFor(model, recording);
    this.channels = this.positions.map((position) => recording.channels[position]);
    this.frames = [];
    this.around = []; // known points of each frame, if bodies move
    this.low = [];
    this.high = [];
    this.notes = doubts(model, recording, this.unknown).map((text) => ({ text }));
    this.ood = []; // the out-of-distribution warning of each window
    this.consistency = [];
    this.extremes = {};
    this.explanations = new Map();
    this.asking = null; // until the answer arrives
  }

  /** Names of the parameters that are unknown. */
  get unknown() {
    return Object.keys(this.parameters).filter((name) => this.parameters[name] === null);
  }

  /** The frame predicted for this time, or null. */
  at(index) {
    return this.frames[index - this.start - 1] ?? null;
  }

  intervalOf(index) {
    const [low, high] = [this.low, this.high].map((ends) => ends[index - this.start - 1]);
    return low && high ? { low, high } : null;
  }

  /**
   * The known points; after the start of a rollout, those around the bodies of the predicted frame,
   * or those that were known at the start.
   */
  known(index) {
    const moved = this.isForced ? null : this.around[index - this.start - 1];
    return moved ?? this.recording.known(this.isForced ? index : Math.min(index, this.start));
  }

  /** The window that ends at a frame: recorded, or predicted in a rollout. */
  window(end) {
    const { history } = this.model;
    const frames = [];
    for (let index = end - history + 1; index <= end; index++) {
      const isMade = !this.isForced && index > this.start;
      const frame = isMade ? this.at(index) : this.picked(index);
      if (!frame) return null;
      frames.push(frame);
    }
    return frames;
  }

  /** The reference of a prediction: a recorded frame where it was measured. */
  truth(index) {
    return this.recording.at(index) && this.picked(index, this.recording.measured(index));
  }

  /** A recorded frame with the channels of the model. */
  picked(index, known = this.recording.known(index)) {
    const [whole, { cells }] = [this.recording.at(index), this.recording];
    if (!whole) return null;
    const frame = new Float32Array(this.positions.length * cells);
    this.positions.forEach((position, i) => {
      const values = whole.subarray(position * cells, (position + 1) * cells);
      frame.set(masked(values, known), i * cells);
    });
    return frame;
  }

  arrays(windows, ends) {
    const [channels, { cells, shape }] = [this.positions.length, this.recording];
    const { history } = this.model;
    const batch = windows.length > 1 ? [windows.length] : [];
    const fields = new Float32Array(windows.length * history * channels * cells);
    const mask = new Uint8Array(windows.length * history * cells);
    windows.flat().forEach((frame, n) => fields.set(frame, n * channels * cells));
    ends.forEach((end, n) => {
      for (let age = 0; age < history; age++) {
        mask.set(this.known(end - history + 1 + age), (n * history + age) * cells);
      }
    });
    const arrays = { fields: { shape: [...batch, history, channels, ...shape], data: fields } };
    if (mask.includes(0)) arrays.mask = { shape: [...batch, history, ...shape], data: mask };
    return arrays;
  }

  facts(more = {}) {
    const facts = { model: this.model.name, parameters: this.parameters, ...more };
    const [{ grid }, { dx, dy, shape, hasSpacing }] = [this.model, this.recording];
    const differs = (a, b) => Math.abs(a - b) > 1e-3 * b;
    const isOther = differs(dx, grid.dx) || differs(dy, grid.dy) || `${shape}` !== `${grid.shape}`;
    if (hasSpacing && isOther) Object.assign(facts, { dx, dy });
    return facts;
  }

  /** Predict; calls `onFrames` whenever frames arrive. */
  async predict(signal, onFrames) {
    if (this.isForced) return this.stepFromTruth(signal, onFrames);
    const arrays = this.arrays([this.window(this.start)], [this.start]);
    const facts = this.facts({ steps: this.steps, ...this.wishes() });
    for await (const block of api.rollout(arrays, facts, signal)) {
      this.take(block);
      onFrames();
    }
  }

  /** Arguments besides frames; with intervals the server checks the start anyway. */
  wishes() {
    if (this.level) return { level: this.level };
    return this.model.trained?.consistency ? { consistency: true } : {};
  }

  async stepFromTruth(signal, onFrames) {
    const facts = this.facts(this.wishes());
    const last = Math.min(this.start + this.steps, this.recording.count);
    for (let first = this.start; first < last; first += AT_ONCE) {
      const count = Math.min(AT_ONCE, last - first);
      const ends = Array.from({ length: count }, (_, n) => first + n);
      const windows = ends.map((end) => this.window(end));
      this.take(await api.step(this.arrays(windows, ends), facts, signal), count);
      onFrames();
    }
  }

  /** Take the frames of an answer; of each of several samples, the first. */
  take({ arrays, facts }, samples = 0) {
    const { prediction, known, low, high } = arrays;
    const { cells } = this.recording;
    const size = this.positions.length * cells;
    const sampleSize = samples ? prediction.data.length / samples : size;
    const count = samples || prediction.data.length / size;
    const cut = (array, n) => array.data.subarray(n * sampleSize, n * sampleSize + size);
    for (let n = 0; n < count; n++) {
      this.frames.push(cut(prediction, n));
      if (known && !samples) this.around.push(known.data.subarray(n * cells, (n + 1) * cells));
      // There are none after the last calibrated lead time.
      if (!low || (!samples && this.frames.length > this.model.calibration.leads)) continue;
      this.low.push(cut(low, n));
      this.high.push(cut(high, n));
    }
    const { "ood.p": p, "ood.flagged": flagged, "ood.limited": limited, consistency } = arrays;
    p?.data.forEach((value, n) => {
      const [isFlagged, isLimited] = [flagged, limited].map(({ data }) => !!data[n]);
      const [reason, lowest] = [facts["ood.reasons"]?.[n], facts["ood.lowest_p"]];
      this.ood.push({ p: value, isFlagged, isLimited, reason, lowest });
    });
    if (consistency) this.consistency.push(...consistency.data);
    for (const note of facts.notes ?? []) {
      if (this.notes.every(({ text }) => text !== note.text)) this.notes.push(note);
    }
  }

  /** The explanation of a predicted frame; for a given one, of the next. */
  explain(index) {
    const isMade = this.at(index) !== null;
    const key = `${index} ${isMade}`;
    let entry = this.explanations.get(key);
    // One request at a time: frames may change faster than answers arrive.
    if (!entry && this.asking) return { isMade, found: null, error: null, done: this.asking };
    if (!entry) {
      const end = isMade ? index - 1 : index;
      const window = this.window(end);
      entry = { isMade, found: null, error: null };
      if (window) {
        entry.done = api.explain(this.arrays([window], [end]), this.facts()).then(
          (answer) => (entry.found = answer),
          (error) => (entry.error = error.message),
        );
        this.asking = entry.done.finally(() => (this.asking = null));
      } else {
        entry.error = "there are not enough frames before this one";
      }
      this.explanations.set(key, entry);
    }
    return entry;
  }
}
