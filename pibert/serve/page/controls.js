// The controls beside the panels, and what the page says in words.

import { getModels, getSamples, onUnauthorized } from "./api.js";
import { number } from "./numbers.js";
import { QUANTITIES, coverageAt } from "./quantities.js";
import { fitToModel, hasBars, loadFile, loadSample, predict, stop } from "./source.js";
import { state, update, watch } from "./state.js";

const find = (id) => document.getElementById(id);
const LEVELS = [0.8, 0.9, 0.95];
const STEPS = 20;

function say(words) {
  find("message").textContent = words ?? "";
  find("message").hidden = !words;
}

/** Carry something out; an error is shown in words, one that we caused by stopping is not. */
async function attempt(status, act) {
  say(null);
  find("status").textContent = status;
  try {
    await act();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
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
  fitToModel(recording, modelOf("model"));
  const options = recording.channels.map((name) => [name, name]);
  if (options.length > 1) options.unshift(["speed", "|u| (speed)"]);
  fill(find("component"), options);
  const isKept = options.some(([name]) => name === state.component);
  const component = isKept ? state.component : options[0][0];
  find("component").value = component;
  update({ recording, runs: [null, null], frame: 0, component, ...firstLook(recording) });
  offerModel();
}

/** Everything in view, with a probe and a slice across the flow to begin with. */
function firstLook({ shape: [ny, nx] }) {
  const x = Math.floor(0.6 * nx);
  const slice = { x0: x + 0.5, y0: 0.5, x1: x + 0.5, y1: ny - 0.5 };
  return { view: null, cursor: null, probe: { x, y: Math.floor(ny / 2) }, slice };
}

function chooseSample() {
  const sample = state.samples.find(({ id }) => id === find("sample").value);
  if (!sample) return Promise.resolve();
  find("file").value = "";
  return attempt("Loading the recording …", () => loadSample(sample, showRecording));
}

function chooseFile(file) {
  if (!file) return;
  attempt("Opening the file …", async () => {
    await loadFile(file, showRecording);
    find("sample").value = "";
    if (state.recording.remarks.length) say(state.recording.remarks.join("; "));
  });
}

// Model.

/** Controls that depend on the model and the recording. */
function offerModel() {
  const [model, { recording }] = [modelOf("model"), state];
  if (!model || !recording) return;
  const first = model.history - 1;
  find("start").min = first;
  find("start").max = recording.count - 1;
  find("start").value = first;
  find("steps").value = Math.max(1, Math.min(STEPS, recording.count - 1 - first));
  fill(find("other"), [
    ["", "nothing"],
    ...state.models.filter((own) => own !== model).map(({ name }) => [name, name]),
  ], find("other").value);
  if (find("other").selectedIndex < 0) find("other").value = "";
  offerLevels(model, recording);
  offerParameters(model, recording);
  find("model-facts").textContent =
    `${model.name}: ${model.kind}, ${model.weights.parameters.toLocaleString("en")} weights, ` +
    `${model.channels.join(", ")} on ${model.grid.shape.join(" × ")} points` +
    `${model.dt ? `, time step ${number(model.dt)}` : ""}. ${model.calibration?.assumption ?? ""}`;
}

function offerLevels(model, recording) {
  const has = hasBars(model, recording);
  const levels = has ? LEVELS.filter((level) => level <= model.calibration.highest_level) : [];
  const none = !model.calibration ? "not calibrated" : has ? "none" : "not on this grid";
  const options = levels.map((level) => [level, `${Math.round(100 * level)} %`]);
  const usual = levels.includes(0.9) ? 0.9 : (levels.at(-1) ?? "");
  fill(find("level"), [["", none], ...options], usual);
  find("level").disabled = !levels.length;
}

function offerParameters(model, recording) {
  find("parameters").replaceChildren(
    ...model.parameters.map(({ name, range }) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "number", step: "any", placeholder: "unknown" });
      input.dataset.parameter = name;
      input.title = `trained from about ${number(range[0])} to ${number(range[1])}`;
      const value = recording.parameters[name];
      if (Number.isFinite(value)) input.value = Number(value.toPrecision(6));
      label.append(`${name} `, input);
      return label;
    }),
  );
}

function parameters() {
  const found = {};
  for (const input of document.querySelectorAll("[data-parameter]")) {
    const own = state.recording.parameters[input.dataset.parameter];
    // What was shown rounded and not changed goes out as it is.
    const isOwn = Number.isFinite(own) && Number(own.toPrecision(6)) === input.valueAsNumber;
    found[input.dataset.parameter] = input.value === "" ? null : isOwn ? own : input.valueAsNumber;
  }
  return found;
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

// What the answers say.

function badges() {
  const found = [];
  const [, second] = state.runs;
  for (const run of state.runs.filter(Boolean)) {
    const of = second ? `${run.model.name}: ` : "";
    const add = (words, kind = "") => found.push([of + words, kind]);
    const raised = run.alarms.filter(({ isRaised }) => isRaised);
    if (raised.length) {
      const [{ p, part }] = raised;
      const where = run.isForced ? ` at ${raised.length} of ${run.alarms.length} frames` : "";
      const why = part ? `, oddest: ${part}` : "";
      const odds = `p = ${number(p)}${why}`;
      add(`Alarm${where}: unlike the training data (${odds}); bars mean nothing`, "warn");
    } else if (run.alarms.length) {
      const p = Math.min(...run.alarms.map((alarm) => alarm.p));
      add(`No alarm: like the training data (p = ${number(p)})`, "good");
    }
    if (run.low.length) add(barWords(run));
    if (run.consistency.length) {
      const least = Math.min(...run.consistency);
      const which = run.isForced ? "Least likely frame" : "Start";
      const words = `${which} obeys its equations: ${Math.round(100 * least)} % likely`;
      add(words, least < 0.5 ? "warn" : "good");
    }
    for (const remark of run.remarks) add(remark, "warn");
  }
  find("badges").replaceChildren(
    ...found.map(([words, kind]) => {
      return Object.assign(document.createElement("li"), { textContent: words, className: kind });
    }),
  );
}

function barWords(run) {
  const inside = coverageAt(run, state.frame);
  const level = Math.round(100 * run.level);
  if (inside !== null) {
    const share = Math.round(100 * inside);
    return `${level} % bars hold the truth at ${share} % of points of this frame`;
  }
  const last = run.start + run.low.length;
  return `${level} % bars for frames ${run.start + 1} to ${last}`;
}

function askToken(wasWrong) {
  const dialog = find("token-dialog");
  find("token-note").textContent = wasWrong ? "That was not the right one." : "";
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

function offerPanels() {
  for (const { id, label } of QUANTITIES) {
    const item = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", name: id });
    box.checked = state.shown.has(id);
    box.addEventListener("change", () => {
      const shown = new Set(state.shown);
      shown[box.checked ? "add" : "delete"](id);
      update({ shown });
    });
    item.append(box, ` ${label}`);
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
  find("model").addEventListener("change", () => {
    if (state.recording) showRecording(state.recording);
  });
  for (const name of ["component", "term", "spectrum"]) {
    find(name).addEventListener("change", (event) => update({ [name]: event.target.value }));
  }
  find("scale").addEventListener("change", (e) => update({ scaleToFrame: e.target.checked }));
  find("smooth").addEventListener("change", (e) => update({ isSmooth: e.target.checked }));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      find("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop") chooseFile(event.dataTransfer.files[0]);
    });
  }
  watch(["isRunning"], () => (find("stop").disabled = !state.isRunning));
  watch(["runs", "frame"], badges);
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
  if (usable && state.recording) await run();
}

function titleOf({ name, id, parameters: own }) {
  const facts = Object.entries(own ?? {}).map(([key, value]) => `${key} ${number(value)}`);
  return [name || id, ...facts].join(", ");
}
