// The parameters of a flow, such as Re: stated by the recording, or typed.

import { number } from "./numbers.js";
import { state } from "./state.js";

const holder = document.getElementById("parameters");
let owner = null; // the recording whose values are shown

/** A box for each parameter of the models. Typed values are kept for the same recording. */
export function offerParameters(models, recording) {
  const known = new Map(models.flatMap((own) => own.parameters).map((own) => [own.name, own]));
  const typed = holder.querySelectorAll("[data-parameter]");
  const kept = new Map([...typed].map((input) => [input.dataset.parameter, input.value]));
  const isSame = owner === recording; // names of recordings may be equal
  owner = recording;
  holder.replaceChildren(
    ...[...known.values()].map(({ name, range }) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "number", step: "any", placeholder: "unknown" });
      input.dataset.parameter = name;
      const value = recording.parameters[name];
      if (isSame && kept.has(name)) input.value = kept.get(name);
      else if (Number.isFinite(value)) input.value = Number(value.toPrecision(6));
      const hint = document.createElement("small");
      const [low, high] = range.map((end) => number(Number(end.toPrecision(2))));
      hint.textContent = `trained on about ${low} to ${high}`;
      label.append(`${name} `, input, hint);
      return label;
    }),
  );
}

/** Remove all boxes: no flow is shown. */
export function clearParameters() {
  owner = null;
  holder.replaceChildren();
}

/** Values by name for a request; null: unknown. */
export function parameters() {
  const found = {};
  for (const input of holder.querySelectorAll("[data-parameter]")) {
    const own = state.recording.parameters[input.dataset.parameter];
    // An unchanged value is sent as it is, not as the rounded text.
    const isOwn = Number.isFinite(own) && Number(own.toPrecision(6)) === input.valueAsNumber;
    found[input.dataset.parameter] = input.value === "" ? null : isOwn ? own : input.valueAsNumber;
  }
  return found;
}
