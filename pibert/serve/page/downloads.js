// What is seen, as files.

import { writeNpy } from "./formats.js";
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
  const size = run.frames[0].length;
  const data = new Float32Array(run.frames.length * size);
  run.frames.forEach((frame, n) => data.set(frame, n * size));
  const shape = [run.frames.length, run.channels.length, ...run.recording.shape];
  save(`${run.model.name}.npy`, writeNpy({ shape, data }), "application/octet-stream");
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
