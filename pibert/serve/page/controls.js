// The controls beside the panels.

import { getModels, getSamples, onUnauthorized } from "./api.js";
import { showBadges } from "./badges.js";
import { number, withUnit } from "./numbers.js";
import { clearParameters, offerParameters, parameters } from "./parameters.js";
import { QUANTITIES, labelOf } from "./quantities.js";
import { objection, stepUnit } from "./runs.js";
import { loadFile, loadSample, predict, stop } from "./source.js";
import { state, update, watch } from "./state.js";

const find = (id) => document.getElementById(id);
const LEVELS = [0.8, 0.9, 0.95];
const STEPS = 20;
// Whether the user has chosen them: then they are kept.
const isChosen = { component: false, interval: false };

function showMessage(words) {
  find("message").textContent = words ?? "";
  find("message").hidden = !words;
}

/** Run an action; returns whether it succeeded. Errors are shown, except for aborts. */
async function attempt(status, act) {
  showMessage(null);
  find("status").textContent = status;
  try {
    await act();
    return true;
  } catch (error) {
    if (error.name !== "AbortError") showMessage(error.message);
    return false;
  } finally {
    if (find("status").textContent === status) find("status").textContent = "";
  }
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (chosen !== undefined) select.value = chosen;
}

const modelOf = (id) => state.models.find(({ name }) => name === find(id).value) ?? null;

// Flow.

function showRecording(recording) {
  stop();
  const model = modelOf("model");
  recording.fitTo(model);
  const options = recording.channels.map((name) => [name, name]);
  if (options.length > 1) options.unshift(["speed", "|u| (speed)"]);
  fill(find("component"), options);
  const isKept = isChosen.component && options.some(([name]) => name === state.component);
  // Prediction intervals belong to single channels.
  const calibrated = model?.calibration ? model.channels : [];
  const usual = calibrated.find((name) => recording.channels.includes(name)) ?? options[0][0];
  const component = isKept ? state.component : usual;
  find("component").value = component;
  const look = recording === state.recording ? {} : firstLook(recording);
  update({ recording, runs: [null, null], frame: 0, component, ...look });
  if (!isChosen.interval) show("interval", calibrated.length > 0);
  offerModel();
  showMessage(model && objection(model, recording));
}

/** Show the whole field, with a first probe and a slice across the flow. */
function firstLook({ shape: [ny, nx] }) {
  const x = Math.floor(0.6 * nx);
  const slice = { x0: x + 0.5, y0: 0.5, x1: x + 0.5, y1: ny - 0.5 };
  return { view: null, cursor: null, probe: { x, y: Math.floor(ny / 2) }, slice };
}

/** Show no flow: the chosen one could not be loaded. */
function showNothing() {
  stop();
  find("sample").value = "";
  find("file").value = "";
  fill(find("component"), []);
  clearParameters();
  update({ recording: null, runs: [null, null], frame: 0, cursor: null, probe: null, slice: null });
}

let loads = 0;

/** Load a flow in position of the current one; if that fails, show none. */
async function load(status, act) {
  const mine = ++loads;
  let isShown = false;
  const ready = (recording) => {
    isShown = true;
    showRecording(recording);
  };
  update({ isLoading: true });
  const isThere = await attempt(status, () => act(ready));
  if (mine !== loads) return false; // another flow was chosen meanwhile
  update({ isLoading: false });
  if (!isShown) showNothing();
  return isThere;
}

async function chooseSample() {
  const sample = state.samples.find(({ id }) => id === find("sample").value);
  if (!sample) return;
  find("file").value = "";
  offerHints(null);
  const isThere = await load("Loading the recording …", (ready) => loadSample(sample, ready));
  if (isThere && sample.models.includes(find("model").value)) await runAtOnce();
}

let chosenFile = null; // can be opened again with hints

/** Boxes for metadata that a file does not state; empty for every new file. */
function offerHints(file) {
  if (file === chosenFile) return;
  chosenFile = file;
  for (const box of document.querySelectorAll("[data-hint]")) box.value = "";
  find("reopen").disabled = !file;
  find("reopen").textContent = file ? `Open ${file.name} again` : "Open the file again";
}

function hints() {
  const boxes = [...document.querySelectorAll("[data-hint]")].filter(({ value }) => value.trim());
  return Object.fromEntries(boxes.map(({ dataset, value }) => [dataset.hint, value.trim()]));
}

async function chooseFile(file) {
  if (!file) return;
  offerHints(file);
  const isThere = await load("Opening the file …", (ready) =>
    loadFile(file, hints(), ready).catch((error) => {
      if (error.name !== "AbortError") error.message = `${file.name} was not opened: ${error.message}`;
      throw error;
    }),
  );
  if (!isThere) {
    if (!state.isLoading) find("hints").open = true;
    return;
  }
  find("sample").value = "";
  const unknown = Object.entries(parameters()).filter(([, value]) => value === null);
  if (!unknown.length) return runAtOnce();
  const names = unknown.map(([name]) => name).join(", ");
  const words = `The file does not state ${names}: enter a value and press Run, or run without it.`;
  if (!objection(modelOf("model"), state.recording)) showMessage(words);
}

/** Predict the flow that was just loaded, if possible and not done yet. */
async function runAtOnce() {
  const isPossible = !objection(modelOf("model"), state.recording);
  if (isPossible && !state.runs[0]) await run();
}

// Model.

/** Controls that depend on the model and the recording. */
function offerModel() {
  const [model, { recording }] = [modelOf("model"), state];
  if (!model || !recording) return;
  fill(find("other"), [
    ["", "nothing"],
    ...state.models.filter((own) => own !== model).map(({ name }) => [name, name]),
  ], find("other").value);
  if (find("other").selectedIndex < 0) find("other").value = "";
  find("start").value = 0;
  offerOther();
  const ahead = recording.count - 1 - find("start").valueAsNumber;
  find("steps").value = ahead > 0 ? Math.min(STEPS, ahead) : STEPS;
  offerLevels(model);
  find("model-facts").textContent = factsOf(model, recording);
  const { assumption } = model.calibration ?? {};
  find("assumption").textContent = assumption ? `Prediction intervals assume ${assumption}.` : "";
}

function factsOf(model, recording) {
  const { channels, dt, grid, history, weights, calibration } = model;
  const facts = [
    `${weights.parameters.toLocaleString("en")} weights`,
    `${channels.join(", ")} on ${grid.shape.join(" × ")} points`,
    dt ? `step ${withUnit(number(dt), stepUnit(model, recording))}` : "",
    history > 1 ? `takes ${history} frames` : "",
    calibration ? `prediction intervals for ${calibration.leads} frames` : "",
  ];
  return facts.filter(Boolean).join("; ");
}

/** What the chosen models need together, and reasons against comparing them. */
function offerOther() {
  const [[model, other], { recording }] = [["model", "other"].map(modelOf), state];
  if (!model || !recording) return;
  const start = find("start");
  start.min = Math.max(model.history, other?.history ?? 1) - 1;
  start.max = recording.count - 1;
  if (!(start.valueAsNumber >= Number(start.min))) {
    start.value = start.min;
    const ahead = recording.count - 1 - start.valueAsNumber;
    if (ahead > 0) find("steps").value = Math.min(find("steps").valueAsNumber || STEPS, ahead);
  }
  offerParameters(other ? [model, other] : [model], recording);
  find("other").disabled = state.models.length < 2;
  let note = "";
  if (state.models.length < 2) note = "To compare, serve two models: pibert serve MODEL OTHER";
  else if (other) note = objection(other, recording) ?? factsOf(other, recording);
  find("other-note").textContent = note;
}

function offerLevels({ calibration }) {
  const levels = LEVELS.filter((level) => level <= (calibration?.highest_level ?? 0));
  const none = calibration ? "none" : "not calibrated";
  const options = levels.map((level) => [level, `${Math.round(100 * level)} %`]);
  const usual = levels.includes(0.9) ? 0.9 : (levels.at(-1) ?? "");
  fill(find("level"), [["", none], ...options], usual);
  find("level").disabled = !levels.length;
}

function run() {
  const models = [modelOf("model"), modelOf("other")].filter(Boolean);
  return attempt("Predicting …", () => {
    if (!models.length || !state.recording) throw new Error("Choose a model and a recording.");
    const [start, steps] = ["start", "steps"].map((id) => find(id).valueAsNumber);
    if (!Number.isInteger(steps) || steps < 1) throw new Error("Steps: expected a number above 0.");
    return predict(models, {
      start,
      steps,
      isForced: find("mode").value === "forced",
      level: Number(find("level").value) || null,
      parameters: parameters(),
    });
  });
}

// Token.

function askToken(wasWrong) {
  const dialog = find("token-dialog");
  find("token-note").textContent = wasWrong ? "The token was not accepted." : "";
  find("token").value = "";
  dialog.showModal();
  return new Promise((done) => {
    const finish = (value) => {
      dialog.close();
      done(value);
    };
    find("token-form").onsubmit = (event) => {
      event.preventDefault();
      finish(find("token").value.trim() || null);
    };
    find("token-cancel").onclick = () => finish(null);
    dialog.oncancel = () => done(null);
  });
}

// Wiring.

function show(id, isWanted) {
  const shown = new Set(state.shown);
  shown[isWanted ? "add" : "delete"](id);
  document.querySelector(`#shown [name=${id}]`).checked = isWanted;
  update({ shown });
}

function offerPanels() {
  for (const { id, label } of QUANTITIES) {
    const item = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", name: id });
    box.checked = state.shown.has(id);
    box.addEventListener("change", () => {
      if (id in isChosen) isChosen[id] = true;
      show(id, box.checked);
    });
    const words = Object.assign(document.createElement("span"), { textContent: label });
    watch(["recording"], () => (words.textContent = labelOf(id)));
    item.append(box, " ", words);
    find("shown").append(item);
  }
}

function wire() {
  find("controls").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  find("stop").addEventListener("click", stop);
  find("sample").addEventListener("change", chooseSample);
  find("file").addEventListener("change", (event) => chooseFile(event.target.files[0]));
  find("reopen").addEventListener("click", () => chooseFile(chosenFile));
  find("model").addEventListener("change", () => {
    if (state.recording) showRecording(state.recording);
  });
  find("other").addEventListener("change", offerOther);
  find("component").addEventListener("change", () => (isChosen.component = true));
  for (const name of ["component", "term", "spectrum"]) {
    find(name).addEventListener("change", (event) => update({ [name]: event.target.value }));
  }
  find("scale").addEventListener("change", (e) => update({ scaleToFrame: e.target.checked }));
  find("smooth").addEventListener("change", (e) => update({ isSmooth: e.target.checked }));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      find("drop").classList.toggle("over", kind === "dragover");
      if (kind !== "drop" || !event.dataTransfer.files.length) return;
      find("file").files = event.dataTransfer.files; // its name is shown there
      chooseFile(event.dataTransfer.files[0]);
    });
  }
  watch(["isRunning"], () => (find("stop").disabled = !state.isRunning));
  watch(["recording", "isLoading"], () => {
    find("run").disabled = !state.recording || state.isLoading;
  });
  watch(["recording", "runs", "frame"], showBadges);
  watch(["explained", "shown", "runs"], () => {
    const terms = state.runs[0]?.terms ?? [];
    find("term-choice").hidden = !state.shown.has("residual") || terms.length < 2;
    if (find("term").options.length !== terms.length) fill(find("term"), terms.map((t) => [t, t]));
  });
}

export async function start() {
  wire();
  offerPanels();
  onUnauthorized(askToken);
  await attempt("Loading …", async () => {
    state.models = await getModels();
    state.samples = await getSamples();
    fill(find("model"), state.models.map(({ name, kind }) => [name, `${name} (${kind})`]));
    fill(find("other"), [["", "nothing"]]);
    fill(find("sample"), state.samples.map((own) => [own.id, titleOf(own)]));
  });
  const usable = state.samples.find(({ models }) => models.includes(find("model").value));
  if (usable) find("sample").value = usable.id;
  await chooseSample();
}

function titleOf({ name, id, parameters: own }) {
  const facts = Object.entries(own ?? {}).map(([key, value]) => `${key} ${number(value)}`);
  return [name || id, ...facts].join(", ");
}
