// What the charts show: a point over time, a line through the field, error over lead time, spectra.
// Each returns the spec of a chart; the same numbers are saved as CSV.

import { bilinear, nmse, pointsAlong } from "./fields.js";
import { axisLabel } from "./numbers.js";
import { pointAt, intervalAt, truthName, uniformAt, valuesAt, velocityAt, intervalNote } from "./quantities.js";
import { radial, streamwise } from "./spectrum.js";
import { lastFrame, state } from "./state.js";

const KINDS = ["first", "second"];
const LEAST_BEFORE = 5; // frames before a prediction that are shown with it

function runs() {
  return state.runs.flatMap((run, n) =>
    run?.frames.length ? [{ run, name: run.model.name, kind: KINDS[n] }] : [],
  );
}

function componentLabel() {
  const name = state.component === "speed" ? "|u|" : state.component;
  return axisLabel(name, state.recording.unit(state.component));
}

function timeAxis() {
  const { dt, timeUnit } = state.recording;
  return dt ? { label: axisLabel("t", timeUnit), of: timeOf } : { label: "frame", of: (n) => n };
}

function timeOf(index) {
  return state.recording.time(index) ?? index;
}

/** The frame whose time is nearest. */
export function frameAt(time) {
  const { dt, stride, t0 } = state.recording;
  return Math.round(dt ? (time - t0) / (dt * stride) : time);
}

export function probeStudy() {
  const { recording, probe } = state;
  const title = "Probe";
  if (!probe) return { title, note: "Click a point of a panel." };
  const position = probe.y * recording.shape[1] + probe.x;
  const axis = timeAxis();
  const trace = (run) => {
    const [first, count] = run ? [run.start + 1, run.frames.length] : [0, recording.count];
    const frames = Array.from({ length: count }, (_, n) => first + n);
    return { x: frames.map(axis.of), y: frames.map((index) => pointAt(run, index, position)) };
  };
  const series = [{ name: truthName(), kind: "truth", ...trace(null) }];
  for (const { run, name, kind } of runs()) series.push({ name, kind, ...trace(run) });
  const spec = { title, x: axis.label, y: componentLabel(), series, at: axis.of(state.frame) };
  spec.where = [{ x: recording.x(probe.x), y: recording.y(probe.y) }];
  const near = nearRuns();
  if (near && !state.isWholeTime) spec.span = near.map(axis.of);
  const band = bandAt(position, axis);
  if (band) spec.band = band;
  else if (state.runs[0]?.low.length) spec.caption = intervalNote(state.runs[0]);
  return spec;
}

/**
 * First and last frame of what is predicted, with some before it; null where that is nearly all, or
 * the frame that is shown lies elsewhere.
 */
export function nearRuns() {
  const made = runs().map(({ run }) => run);
  if (!made.length) return null;
  const start = Math.min(...made.map((run) => run.start));
  const last = Math.max(...made.map((run) => run.start + run.steps));
  const first = Math.max(0, start - Math.max(LEAST_BEFORE, Math.ceil((last - start) / 2)));
  const isNearlyAll = last - first > 0.8 * lastFrame();
  return isNearlyAll || state.frame < first || state.frame > last ? null : [first, last];
}

function bandAt(position, axis) {
  const [run] = state.runs;
  if (!run?.low.length || state.component === "speed") return null;
  const { length } = run.low;
  const extent = length < run.frames.length ? `, ${length} frames ahead` : "";
  const name = `${Math.round(100 * run.level)} % prediction interval${extent}`;
  const band = { name, x: [], low: [], high: [] };
  for (let index = run.start + 1; index <= run.start + run.low.length; index++) {
    const [low, high] = intervalAt(run, index, position);
    if (!Number.isFinite(low + high)) continue;
    band.x.push(axis.of(index));
    band.low.push(low);
    band.high.push(high);
  }
  return band.x.length ? band : null;
}

export function sliceStudy() {
  const { recording, slice, frame } = state;
  const title = "Slice";
  if (!slice) return { title, note: "Drag in a panel with Shift, or in Slice mode." };
  const points = pointsAlong(slice, recording);
  const x = points.map(({ distance }) => distance);
  const along = (values) =>
    points.map((point) => (values ? bilinear(values, recording.shape, point.x, point.y) : NaN));
  const series = [
    { name: truthName(), kind: "truth", x, y: along(valuesAt(recording, null, frame)) },
    ...runs().map(({ run, name, kind }) => ({
      name,
      kind,
      x,
      y: along(valuesAt(recording, run, frame)),
    })),
  ];
  const ends = [[slice.x0, slice.y0], [slice.x1, slice.y1]].map(([a, b]) => positionOf(a, b));
  const positions = points.map((point) => positionOf(point.x, point.y));
  return {
    title,
    x: axisLabel("distance", recording.lengthUnit),
    y: componentLabel(),
    series,
    where: ends,
    positions: { x: positions.map((own) => own.x), y: positions.map((own) => own.y) },
  };
}

/** Coordinates of a point given in cells, whose centres are at 0.5. */
function positionOf(x, y) {
  return { x: state.recording.x(x - 0.5), y: state.recording.y(y - 0.5) };
}

export function errorStudy() {
  const title = "Error";
  const found = runs();
  if (!found.length) return { title, note: "Press Run to predict." };
  if (state.recording.predicted) {
    return { title, note: "The recording is itself a prediction: no score." };
  }
  const leadsOf = (run) => run.frames.map((_, n) => n + 1);
  const series = found.map(({ run, name, kind }) => {
    const leads = leadsOf(run);
    return { name, kind, x: leads, y: leads.map((lead) => scores(run, lead).own) };
  });
  const [{ run }] = [...found].sort((a, b) => b.run.frames.length - a.run.frames.length);
  const persistence = leadsOf(run).map((lead) => scores(run, lead).persistence);
  series.push({ name: "persistence", kind: "reference", x: leadsOf(run), y: persistence });
  if (!series.some(({ y }) => y.some(Number.isFinite))) {
    return { title, note: "There is no ground truth to compare with." };
  }
  const x = run.isForced ? "step" : "lead (frames)";
  return { title, x, y: "NMSE", series, at: state.frame - run.start, isLogY: true };
}

/** NMSE of a run and of the last frame given, computed once. */
function scores(run, lead) {
  run.scores ??= new Map();
  if (!run.scores.has(lead)) {
    const truth = run.truth(run.start + lead);
    const last = run.picked(run.isForced ? run.start + lead - 1 : run.start);
    const score = (frame) => (truth && frame ? nmse(frame, truth) : NaN);
    run.scores.set(lead, { own: score(run.frames[lead - 1]), persistence: score(last) });
  }
  return run.scores.get(lead);
}

export function spectrumStudy() {
  const { recording, frame } = state;
  const title = "Spectrum";
  const make = (run) => {
    const both = velocityAt(recording, run, frame);
    if (!both) return null;
    const { shape, dx, dy } = recording;
    if (state.spectrum === "radial") return radial(...both, shape, dx, dy);
    return streamwise(...both, shape, dx);
  };
  const series = [];
  const wanted = [{ run: null, name: truthName(), kind: "truth" }, ...runs()];
  for (const { run, name, kind } of wanted) {
    const found = make(run);
    if (found) series.push({ name, kind, x: found.k, y: found.energy });
  }
  if (!series.length) return { title, note: "A spectrum needs two velocity components." };
  const unit = recording.lengthUnit;
  const x = axisLabel(state.spectrum === "radial" ? "|k|" : "k along x", unit && `1/${unit}`);
  return { title, x, y: "E(k)", series, isLog: true };
}

/** Names of the displacement and velocity of a body, if the recording has both. */
const MOTION = ["displacement", "velocity"];

export function hasMotion() {
  return Boolean(state.recording) && hasAll(state.recording.channels);
}

/** Velocity against displacement of a body, which are the same at all points. */
export function portraitStudy() {
  const { recording } = state;
  const title = "Phase portrait";
  if (!hasMotion()) return { title, note: "The recording has no moving body." };
  const wanted = [{ run: null, name: truthName(), kind: "truth" }, ...runs()];
  const [series, overTime] = [[], []];
  const axis = timeAxis();
  for (const { run, name, kind } of wanted) {
    if (run && !hasAll(run.channels)) continue;
    const [first, count] = run ? [run.start + 1, run.frames.length] : [0, recording.count];
    const frames = Array.from({ length: count }, (_, n) => first + n);
    const [x, y] = MOTION.map((own) => frames.map((index) => uniformAt(run, index, own)));
    series.push({ name, kind, x, y });
    const times = frames.map(axis.of);
    MOTION.forEach((own, n) => overTime.push({ name: `${own} ${name}`, x: times, y: [x, y][n] }));
  }
  const [x, y] = MOTION.map((name) => axisLabel(name, recording.unit(name)));
  return { title, x, y, series, table: { x: axis.label, series: overTime } };
}

function hasAll(channels) {
  return MOTION.every((name) => channels.includes(name));
}

/** A study as a table: one row for each x, one column for each line. */
export function asCsv({ table, ...chart }) {
  const spec = table ?? chart;
  const columns = [...spec.series];
  if (spec.positions) {
    const [{ x }] = columns;
    columns.unshift({ name: "x", x, y: spec.positions.x }, { name: "y", x, y: spec.positions.y });
  }
  if (spec.band) {
    const { x, low, high } = spec.band;
    columns.push({ name: "low", x, y: low }, { name: "high", x, y: high });
  }
  const positions = [...new Set(columns.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const lookups = columns.map(({ x, y }) => new Map(x.map((at, n) => [at, y[n]])));
  const cell = (value) => (Number.isFinite(value) ? String(value) : "");
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const head = [spec.x, ...columns.map(({ name }) => name)].map(quoted).join(",");
  const rows = positions.map((at) => [at, ...lookups.map((own) => own.get(at))].map(cell).join(","));
  return [head, ...rows, ""].join("\n");
}
