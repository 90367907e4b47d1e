// The page: panels, charts, time and keys. controls.js selects their data.

import { Chart } from "./charts.js";
import { start } from "./controls.js";
import { saveCsv, saveFlow, saveFrames, savePicture } from "./downloads.js";
import { number, withUnit } from "./numbers.js";
import { Panel } from "./panels.js";
import { attach, zoom } from "./pointer.js";
import { chosenPanels } from "./quantities.js";
import { goTo, lastFrame, state, update, watch } from "./state.js";
import {
  errorStudy,
  frameAt,
  hasMotion,
  nearRuns,
  portraitStudy,
  probeStudy,
  sliceStudy,
  spectrumStudy,
} from "./studies.js";

const find = (id) => document.getElementById(id);

// Panels.

let panels = [];

function arrangePanels() {
  if (!state.recording) {
    panels = [];
    const words = "No flow is shown: choose a recording, or drop a file here.";
    find("panels").replaceChildren(
      Object.assign(document.createElement("p"), { textContent: words }),
    );
    find("readout").textContent = "Point at a panel to read values.";
    return;
  }
  const wanted = chosenPanels();
  const known = new Map(panels.map((panel) => [panel.spec.key, panel]));
  panels = wanted.map((spec) => {
    const panel = known.get(spec.key) ?? new Panel(spec);
    if (!known.has(spec.key)) attach(panel);
    panel.spec = spec;
    return panel;
  });
  const figures = panels.map((panel) => panel.figure);
  const holder = find("panels");
  const isSame =
    figures.length === holder.children.length &&
    figures.every((own, n) => own === holder.children[n]);
  if (!isSame) holder.replaceChildren(...figures); // keeps the focus where nothing moved
  drawPanels();
}

function drawPanels() {
  if (!state.recording) return;
  for (const panel of panels) panel.draw(state.frame);
  readOut();
}

watch(["recording", "runs", "shown"], arrangePanels);
watch(["frame", "component", "term", "scaleToFrame", "isSmooth", "view"], drawPanels);
watch(["explained", "theme", "isRunning"], drawPanels);
watch(["cursor", "probe", "slice", "drag"], () => {
  for (const panel of panels) panel.drawMarks();
});
watch(["cursor", "probe"], readOut);
watch(["isSlicing"], () => {
  find("slicing").setAttribute("aria-pressed", String(state.isSlicing));
  find("panels").classList.toggle("slicing", state.isSlicing);
});

/** The values under the cursor in all panels, else those at the probe. */
function readOut() {
  const { recording } = state;
  if (!recording) return;
  const point = state.cursor ?? state.probe;
  const position = point && point.y * recording.shape[1] + point.x;
  const isBody = point && recording.body(state.frame)?.[position];
  const where = point ? whereWords({ x: recording.x(point.x), y: recording.y(point.y) }) : "";
  const lead = state.cursor ? "Cursor" : point ? "Probe" : "Point at a panel to read values.";
  const parts = [[lead, where]];
  // A dash without a value, so that the panels below do not move.
  for (const { spec, found } of panels) {
    const value = found?.values?.[position] ?? null;
    const words = isBody ? "body" : value === null ? "–" : withUnit(number(value), found.unit);
    parts.push([spec.title, words]);
  }
  find("readout").replaceChildren(
    ...parts.map(([name, value]) => {
      const item = document.createElement("span");
      const strong = document.createElement("b");
      strong.textContent = value;
      item.append(name ? `${name} ` : "", strong);
      item.title = item.textContent; // may be cut short
      return item;
    }),
  );
}

/** A point, or a line between two. */
function whereWords(start, end = start) {
  const along = (name) => {
    const [from, to] = [start, end].map((point) => number(point[name]));
    return `${name} = ${from === to ? from : `${from} to ${to}`}`;
  };
  const { lengthUnit } = state.recording;
  return `${along("x")}, ${along("y")}${lengthUnit ? ` ${lengthUnit}` : ""}`;
}

// Charts.

const STUDIES = {
  probe: { make: probeStudy, after: ["recording", "runs", "frame", "component", "probe", "isWholeTime"] },
  slice: { make: sliceStudy, after: ["recording", "runs", "frame", "component", "slice"] },
  error: { make: errorStudy, after: ["recording", "runs", "frame"] },
  portrait: { make: portraitStudy, after: ["recording", "runs", "frame"] },
  spectrum: { make: spectrumStudy, after: ["recording", "runs", "frame", "spectrum"] },
};
const PICKS = {
  probe: (time) => goTo(frameAt(time)),
  error: (lead) => goTo(state.runs[0].start + lead),
};

// Before the charts are drawn: they take the width that they have.
watch(["recording"], () => {
  document.querySelector("[data-study=portrait]").hidden = !hasMotion();
});

for (const figure of document.querySelectorAll("[data-study]")) {
  const name = figure.dataset.study;
  const { make, after } = STUDIES[name];
  const chart = new Chart(figure, PICKS[name]);
  const button = figure.querySelector("[data-save]");
  const draw = () => {
    const spec = state.recording ? make() : { title: name, note: "No flow is shown." };
    chart.draw(spec);
    button.disabled = !spec.series;
    const where = figure.querySelector(".where");
    if (where) {
      where.textContent = spec.where ? whereWords(...spec.where) : "";
    }
  };
  watch([...after, "theme"], draw);
  button.addEventListener("click", () => saveCsv(name, make()));
  button.disabled = true;
}

find("whole-time").addEventListener("click", () => update({ isWholeTime: !state.isWholeTime }));
watch(["recording", "runs", "frame", "isWholeTime"], () => {
  const button = find("whole-time");
  button.disabled = !state.recording || !nearRuns();
  button.setAttribute("aria-pressed", String(state.isWholeTime));
});

// Time.

let timer = null;

function setPlaying(isPlaying) {
  clearInterval(timer);
  timer = isPlaying ? setInterval(advance, 1000 / Number(find("speed").value)) : null;
  find("play").textContent = isPlaying ? "Pause" : "Play";
  find("readout").setAttribute("aria-live", isPlaying ? "off" : "polite"); // not ten times a second
}

/** The next frame; after the last one, the first of the prediction. */
function advance() {
  const [run] = state.runs;
  const [first, last] = run?.frames.length
    ? [run.start, run.start + run.frames.length]
    : [0, lastFrame()];
  goTo(state.frame >= last || state.frame < first ? first : state.frame + 1);
}

find("play").addEventListener("click", () => setPlaying(timer === null));
find("speed").addEventListener("change", () => setPlaying(timer !== null));
find("slider").addEventListener("input", (event) => goTo(Number(event.target.value)));

watch(["frame", "recording", "runs"], () => {
  const slider = find("slider");
  const time = state.recording?.time(state.frame) ?? null;
  const { timeUnit } = state.recording ?? {};
  const clock = time === null ? "" : `, t = ${withUnit(number(time), timeUnit)}`;
  slider.max = lastFrame();
  slider.value = state.frame;
  const frame = `frame ${state.frame} of ${lastFrame()}${clock}`;
  find("when").textContent = state.recording ? frame : "no frame";
  slider.setAttribute("aria-valuetext", find("when").textContent);
});

// Tools, keys, downloads.

find("slicing").addEventListener("click", () => update({ isSlicing: !state.isSlicing }));
find("zoom-in").addEventListener("click", () => state.recording && zoom(0.7));
find("zoom-out").addEventListener("click", () => state.recording && zoom(1 / 0.7));
find("zoom-all").addEventListener("click", () => update({ view: null }));

const KEYS = {
  " ": () => setPlaying(timer === null),
  ArrowLeft: () => goTo(state.frame - 1),
  ArrowRight: () => goTo(state.frame + 1),
  ",": () => goTo(state.frame - 1),
  ".": () => goTo(state.frame + 1),
  "+": () => zoom(0.7),
  "=": () => zoom(0.7),
  "-": () => zoom(1 / 0.7),
  0: () => update({ view: null }),
  Escape: () => update({ probe: null, slice: null, isSlicing: false }),
};

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input:not([type=range]), select, dialog, summary");
  const isPressing = event.target.closest("button") && event.key === " ";
  const isSliding = event.target.closest("[type=range]") && event.key.startsWith("Arrow");
  const hasModifier = event.ctrlKey || event.altKey || event.metaKey;
  const act = KEYS[event.key];
  if (!act || isTyping || isPressing || isSliding || hasModifier || !state.recording) return;
  event.preventDefault();
  act();
});

find("save-picture").addEventListener("click", () => {
  if (panels.length) savePicture(panels, `${state.recording.name}, ${find("when").textContent}`);
});
for (const [id, save] of [["save-frames", saveFrames], ["save-flow", saveFlow]]) {
  find(id).addEventListener("click", () => {
    for (const run of state.runs) if (run?.frames.length) save(run);
  });
  watch(["runs"], () => (find(id).disabled = !state.runs[0]?.frames.length));
}

// Redraw when the size or the colours change.

const redraw = () => update({ theme: state.theme + 1 });
let room = 0;
new ResizeObserver(([entry]) => {
  if (entry.contentRect.width !== room) redraw();
  room = entry.contentRect.width;
}).observe(find("panels"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// A small screen shows the fields first; a large one shows the settings beside them.
const small = matchMedia("(max-width: 820px)");
const fold = () => (find("settings").open = !small.matches);
small.addEventListener("change", fold);
fold();

start();
