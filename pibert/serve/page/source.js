// Loads models, recordings and dropped files, and runs models.

import * as api from "./api.js";
import { Recording } from "./fields.js";
import { Run, objection } from "./runs.js";
import { goTo, state, update } from "./state.js";

const CHUNK = 8e6; // bytes of frames asked for at once
const MOST = 200e6; // bytes of frames held

let loading = new AbortController();
let running = new AbortController();

/** Show a recording of the server; calls `ready` when its first frames have arrived. */
export async function loadSample(sample, ready) {
  const signal = restart();
  const size = 4 * sample.channels.length * sample.grid.shape[0] * sample.grid.shape[1];
  const count = Math.max(1, Math.floor(CHUNK / size));
  const end = Math.min(sample.frames, Math.max(1, Math.floor(MOST / size)));
  const recording = new Recording(sample, sample.grid.shape);
  if (end < sample.frames) {
    recording.notes.push({ text: `the first ${end} of ${sample.frames} frames` });
  }
  while (recording.all.length < end) {
    const start = recording.all.length;
    // The rest without a stop: the server returns what fits its limits.
    const stop = start + count < end || end < sample.frames ? Math.min(end, start + count) : null;
    const answer = await api.getFrames(sample.id, start, stop, signal);
    signal.throwIfAborted();
    recording.add(answer);
    if (start === 0) {
      recording.notes.push(...answer.facts.notes);
      ready(recording);
    } else {
      update({ recording });
    }
  }
}

/** Show the frames of a file; `hints` are metadata overrides. */
export async function loadFile(file, hints, ready) {
  const signal = restart();
  const bytes = new Uint8Array(await file.arrayBuffer());
  const answer = await api.openFile(bytes, { name: file.name, ...hints }, signal);
  signal.throwIfAborted();
  const { facts, arrays } = answer;
  const recording = new Recording(facts, arrays.fields.shape.slice(2));
  recording.name = file.name;
  recording.add(answer);
  ready(recording);
}

function restart() {
  loading.abort();
  loading = new AbortController();
  return loading.signal;
}

export function stop() {
  running.abort();
}

/** Run one or two models; frames are shown as they arrive. */
export async function predict(models, settings) {
  stop();
  const { recording } = state;
  for (const model of models) {
    const words = objection(model, recording);
    if (words) throw new Error(words);
    if (recording.strideFor(model) !== recording.stride) {
      throw new Error(
        `${model.name} steps by ${model.dt}, ${models[0].name} by ${models[0].dt}: choose models ` +
          "with one time step.",
      );
    }
  }
  const oldest = Math.max(...models.map((model) => model.history)) - 1;
  if (settings.start < oldest || settings.start >= recording.count) {
    throw new Error(
      `From frame: expected ${oldest} to ${recording.count - 1}, found ${settings.start}.`,
    );
  }
  const controller = (running = new AbortController());
  const runs = models.map((model) => {
    const hasLevel = settings.level <= (model.calibration?.highest_level ?? 0);
    const level = hasLevel ? settings.level : null;
    const names = model.parameters.map(({ name }) => name);
    const parameters = Object.fromEntries(names.map((name) => [name, settings.parameters[name]]));
    return new Run(model, recording, { ...settings, level, parameters });
  });
  update({ runs: [runs[0], runs[1] ?? null], isRunning: true });
  let followed = settings.start;
  goTo(followed);
  const onFrames = () => {
    if (controller.signal.aborted) return;
    const isWatched = state.frame === followed;
    followed = settings.start + runs[0].frames.length;
    update({ runs: [...state.runs] });
    if (isWatched) goTo(followed);
  };
  const ends = await Promise.allSettled(runs.map((run) => run.predict(controller.signal, onFrames)));
  if (running === controller) update({ isRunning: false });
  const failed = ends.findIndex(({ status }) => status === "rejected");
  if (failed < 0) return;
  const { reason } = ends[failed];
  if (runs.length === 1 || reason.name === "AbortError") throw reason;
  throw new Error(`${models[failed].name}: ${reason.message}`);
}
