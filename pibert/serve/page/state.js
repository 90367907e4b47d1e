// The state of the page, and its observers.

export const state = {
  models: [],
  samples: [],
  recording: null,
  runs: [null, null], // of the first and the second model
  isRunning: false,
  isLoading: false, // a recording or a file is being loaded
  frame: 0,
  component: "speed",
  shown: new Set(["truth", "prediction", "error", "vorticity"]),
  term: null, // of the PDE, for the residual map
  spectrum: "x",
  isWholeTime: false, // the probe over all frames, not those near the prediction
  scaleToFrame: false,
  isSmooth: true,
  view: null, // {x0, x1, y0, y1} in cells, null: everything
  cursor: null, // {x, y}, a cell
  probe: null, // {x, y}, a cell
  slice: null, // {x0, y0, x1, y1} in cells
  drag: null, // box that is being drawn, as the view
  isSlicing: false, // a drag draws a slice
  explained: 0, // grows when an explanation arrives
  theme: 0, // grows when colours change
};

const watchers = [];
const changed = new Set();
let isDue = false;

/** Call a function before the next repaint when one of these has changed. */
export function watch(names, act) {
  watchers.push([names, act]);
}

export function update(changes) {
  for (const [name, value] of Object.entries(changes)) {
    state[name] = value;
    changed.add(name);
  }
  if (!isDue) {
    isDue = true;
    requestAnimationFrame(tell);
  }
}

function tell() {
  const now = new Set(changed);
  changed.clear();
  isDue = false;
  for (const [names, act] of watchers) {
    if (names.some((name) => now.has(name))) act();
  }
}

/** The last frame with data. */
export function lastFrame() {
  const ends = state.runs.filter(Boolean).map((run) => run.start + run.frames.length);
  return Math.max(0, (state.recording?.count ?? 1) - 1, ...ends);
}

export function goTo(frame) {
  update({ frame: Math.min(Math.max(0, Math.round(frame)), lastFrame()) });
}
