// Saves frames, panels and charts as files.

import { writeNpy, writeSafetensors } from "./formats.js";
import { palette } from "./panels.js";
import { asCsv } from "./studies.js";

function save(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function saveCsv(name, study) {
  save(`${name}.csv`, asCsv(study), "text/csv");
}

/** The predicted frames: (time, channel, y, x). */
export function saveFrames(run) {
  save(`${run.model.name}.npy`, writeNpy(framesOf(run)), "application/octet-stream");
}

/** The same with their metadata, in a file that the server can open. */
export function saveFlow(run) {
  const { model, recording, parameters, positions, channels } = run;
  const { dx, dy, x0, y0, dt, stride, lengthUnit, timeUnit } = recording;
  const facts = {
    channels,
    units: positions.map((position) => recording.units[position]),
    ...{ dx, dy, x0, y0, parameters: known(parameters) },
    ...(dt ? { dt: dt * stride, t0: recording.time(run.start + 1) } : {}),
    ...(lengthUnit ? { length_unit: lengthUnit } : {}),
    ...(timeUnit ? { time_unit: timeUnit } : {}),
    source: { kind: "predicted", model: model.name, weights_sha256: model.weights.sha256 },
  };
  const texts = Object.entries(facts).map(([name, fact]) => [name, JSON.stringify(fact)]);
  const arrays = { fields: framesOf(run), mask: pointsOf(run, (index) => run.known(index)) };
  // Includes the body of the model if the recording states none.
  if (recording.body(run.start)) arrays.body = pointsOf(run, (index) => recording.body(index));
  const bytes = writeSafetensors(arrays, Object.fromEntries(texts));
  save(`${model.name}.safetensors`, bytes, "application/octet-stream");
}

function known(parameters) {
  return Object.fromEntries(Object.entries(parameters).filter(([, value]) => value !== null));
}

function framesOf(run) {
  const size = run.frames[0].length;
  const data = new Float32Array(run.frames.length * size);
  run.frames.forEach((frame, n) => data.set(frame, n * size));
  return { shape: [run.frames.length, run.channels.length, ...run.recording.shape], data };
}

/** One number for each point of the predicted frames: (time, y, x). */
function pointsOf(run, at) {
  const { cells, shape } = run.recording;
  const data = new Uint8Array(run.frames.length * cells);
  run.frames.forEach((_, n) => data.set(at(run.start + 1 + n), n * cells));
  return { shape: [run.frames.length, ...shape], data };
}

/** All panels with their titles, two side by side. */
export async function savePicture(panels, title) {
  const [gap, head] = [16, 26];
  const { width, height } = panels[0].canvas;
  const ratio = panels[0].ratio;
  const columns = Math.min(2, panels.length);
  const rows = Math.ceil(panels.length / columns);
  const sheet = document.createElement("canvas");
  sheet.width = columns * width + (columns + 1) * gap;
  sheet.height = rows * (height + head * ratio) + head * ratio + gap;
  const context = sheet.getContext("2d");
  const colours = palette();
  context.fillStyle = colours.surface;
  context.fillRect(0, 0, sheet.width, sheet.height);
  context.fillStyle = colours.text;
  context.textBaseline = "middle";
  context.font = `${14 * ratio}px system-ui, sans-serif`;
  context.fillText(title, gap, (head / 2 + 4) * ratio);
  context.font = `bold ${13 * ratio}px system-ui, sans-serif`;
  panels.forEach((panel, n) => {
    const x = gap + (n % columns) * (width + gap);
    const y = head * ratio + Math.floor(n / columns) * (height + head * ratio);
    context.fillText(panel.caption.textContent, x, y + (head / 2) * ratio);
    context.drawImage(panel.canvas, x, y + head * ratio);
    context.drawImage(panel.marks, x, y + head * ratio);
  });
  const blob = await new Promise((done) => sheet.toBlob(done, "image/png"));
  save("panels.png", blob, "image/png");
}
