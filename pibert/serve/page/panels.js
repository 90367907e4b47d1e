// Panels: a field with axes and a colour bar on one canvas, the linked cursor and marks on another.

import { range } from "./fields.js";
import { axisLabel, number, powerOfTen, shortLabels, someTicks } from "./numbers.js";
import { quantity } from "./quantities.js";
import { fillImage } from "./raster.js";
import { state } from "./state.js";

const MARGIN = { left: 58, right: 72, top: 8, bottom: 36 };
const NARROW = { ...MARGIN, left: 44, right: 64 }; // without a label beside the y axis
const TALLEST = 440;

export function wholeView() {
  const [ny, nx] = state.recording.shape;
  return { x0: 0, x1: nx, y0: 0, y1: ny };
}

export function currentView() {
  return state.view ?? wholeView();
}

/** Colours of the page, which follow its light or dark scheme. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["text", "muted", "surface", "line", "accent", "body", "unknown", "hatch"];
  return Object.fromEntries(names.map((name) => [name, colour(name)]));
}

export class Panel {
  constructor(spec) {
    this.spec = spec;
    this.figure = document.createElement("figure");
    this.figure.className = "panel";
    this.caption = document.createElement("figcaption");
    this.stack = document.createElement("div");
    this.stack.className = "stack";
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-describedby", "panel-keys");
    this.marks = document.createElement("canvas");
    this.marks.className = "marks";
    this.marks.setAttribute("aria-hidden", "true");
    this.stack.append(this.canvas, this.marks);
    this.figure.append(this.caption, this.stack);
    this.figure.dataset.panel = spec.key;
    this.found = null;
  }

  /** Where the field lies on the canvas, in CSS pixels. */
  layout() {
    const { shape, dx, dy } = state.recording;
    const width = Math.max(160, this.stack.clientWidth);
    const aspect = (shape[0] * dy) / (shape[1] * dx);
    const margin = width < 360 ? NARROW : MARGIN;
    const wide = width - margin.left - margin.right;
    const high = Math.min(wide * aspect, TALLEST);
    const plot = { x: margin.left, y: margin.top, width: high / aspect, height: high };
    plot.x += (wide - plot.width) / 2;
    return { width, height: high + margin.top + margin.bottom, plot, isNarrow: margin === NARROW };
  }

  draw(index) {
    this.box = this.layout();
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    for (const canvas of [this.canvas, this.marks]) {
      canvas.width = Math.round(this.box.width * ratio);
      canvas.height = Math.round(this.box.height * ratio);
      canvas.style.height = `${this.box.height}px`;
    }
    this.ratio = ratio;
    const { x, y, width, height } = this.box.plot;
    this.canvas.dataset.plot = [x, y, width, height].join(" ");
    this.found = quantity(this.spec, index);
    this.values = this.found.values;
    const context = this.canvas.getContext("2d");
    const colours = palette();
    if (this.values) this.drawField(context, index, colours);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "12px system-ui, sans-serif";
    this.drawAxes(context, colours);
    if (this.values) this.drawBar(context, colours);
    else this.drawNote(context, colours);
    this.describe(index);
    this.drawMarks();
  }

  drawField(context, index, colours) {
    const { plot } = this.box;
    const [x, y, width, height] = [plot.x, plot.y, plot.width, plot.height].map((length) =>
      Math.round(length * this.ratio),
    );
    const image = context.createImageData(width, height);
    const { shape } = state.recording;
    fillImage(image, this.values, shape, currentView(), {
      scale: this.found.scale,
      body: state.recording.body(index),
      isSmooth: state.isSmooth,
      colours,
    });
    context.putImageData(image, x, y);
  }

  drawAxes(context, colours) {
    const { plot } = this.box;
    const { recording } = state;
    const { lengthUnit } = recording;
    const view = currentView();
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.width + 1, plot.height + 1);
    context.fillStyle = colours.muted;
    context.textBaseline = "top";
    context.textAlign = "center";
    const [left, right] = [view.x0, view.x1].map((edge) => recording.x(edge - 0.5));
    for (const tick of someTicks(left, right, plot.width / 65, plot.width < 150 ? 2 : 3)) {
      const x = plot.x + ((tick - left) / (right - left)) * plot.width;
      context.fillRect(x - 0.5, plot.y + plot.height, 1, 4);
      context.fillText(number(tick), x, plot.y + plot.height + 6);
    }
    const middle = plot.x + plot.width / 2;
    context.fillText(axisLabel("x", lengthUnit), middle, plot.y + plot.height + 19);
    context.textAlign = "right";
    context.textBaseline = "middle";
    const [low, high] = [view.y0, view.y1].map((edge) => recording.y(edge - 0.5));
    for (const tick of someTicks(low, high, plot.height / 45, 2)) {
      const y = plot.y + plot.height - ((tick - low) / (high - low)) * plot.height;
      context.fillRect(plot.x - 4, y - 0.5, 4, 1);
      context.fillText(number(tick), plot.x - 6, y);
    }
    if (this.box.isNarrow) return;
    context.save();
    context.translate(plot.x - MARGIN.left + 9, plot.y + plot.height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(axisLabel("y", lengthUnit), 0, 0);
    context.restore();
  }

  drawBar(context, colours) {
    const { plot } = this.box;
    const { scale } = this.found;
    const marked = someTicks(scale.low, scale.high, plot.height / 30, 3);
    const { labels, power } = shortLabels(marked);
    const unit = [power ? powerOfTen(power) : "", this.found.unit].filter(Boolean).join(" ");
    const x = plot.x + plot.width + 10;
    const top = plot.y + (unit ? 14 : 0);
    const height = plot.height - (unit ? 14 : 0);
    for (let i = 0; i < height; i++) {
      const share = 1 - (i + 0.5) / height;
      const colour = scale.colours[Math.min(255, Math.floor(share * 256))];
      context.fillStyle = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
      context.fillRect(x, top + i, 11, Math.min(1.5, height - i));
    }
    context.strokeStyle = colours.line;
    context.strokeRect(x - 0.5, top - 0.5, 12, height + 1);
    context.fillStyle = colours.muted;
    context.textAlign = "left";
    context.textBaseline = "middle";
    // To the left of the bar's edge if it is long.
    const room = this.box.width - context.measureText(unit).width - 1;
    if (unit) context.fillText(unit, Math.min(x, room), plot.y + 3);
    marked.forEach((tick, n) => {
      const y = top + height * (1 - (tick - scale.low) / (scale.high - scale.low));
      const inside = Math.min(Math.max(y, top + 5), top + height - 5);
      context.fillText(labels[n], x + 16, inside, this.box.width - x - 17);
    });
  }

  drawNote(context, colours) {
    const { plot } = this.box;
    context.fillStyle = colours.muted;
    context.font = "14px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    const lines = wrap(context, this.found.note, plot.width - 20);
    lines.forEach((line, n) => {
      const y = plot.y + plot.height / 2 + (n - (lines.length - 1) / 2) * 19;
      context.fillText(line, plot.x + plot.width / 2, y);
    });
  }

  /** Caption and text alternative. */
  describe(index) {
    const { values, unit, note, term } = this.found;
    const time = state.recording.time(index);
    const when = `frame ${index}${time === null ? "" : `, t = ${number(time)}`}`;
    const title = term ? `${this.spec.title}: ${term}` : this.spec.title;
    let extent = note;
    if (values) {
      const [low, high] = range(values).map(number);
      extent = `${low} to ${high}${unit ? ` ${unit}` : ""}`;
    }
    const of = ["truth", "prediction", "error", "interval"].includes(this.spec.id)
      ? ` of ${state.component === "speed" ? "|u|" : state.component}`
      : "";
    const name = Object.assign(document.createElement("b"), { textContent: title });
    this.caption.replaceChildren(name, values ? ` ${extent}` : "");
    this.caption.title = this.caption.textContent; // may be cut short
    this.canvas.setAttribute("aria-label", `${title}${of}, ${when}: ${extent}`);
  }

  /** The cursor, the probe, the slice and the box that is being drawn. */
  drawMarks() {
    if (!this.box) return;
    const context = this.marks.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.marks.width, this.marks.height);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (!this.values) return; // a text is shown instead
    const { plot } = this.box;
    context.save();
    context.beginPath();
    context.rect(plot.x, plot.y, plot.width, plot.height);
    context.clip();
    const { cursor, probe, slice, drag } = state;
    if (cursor) {
      const [x, y] = this.toPixels(cursor.x + 0.5, cursor.y + 0.5);
      stroke(context, 1, (path) => {
        path.moveTo(plot.x, y);
        path.lineTo(plot.x + plot.width, y);
        path.moveTo(x, plot.y);
        path.lineTo(x, plot.y + plot.height);
      });
    }
    if (slice) {
      stroke(context, 2, (path) => {
        path.moveTo(...this.toPixels(slice.x0, slice.y0));
        path.lineTo(...this.toPixels(slice.x1, slice.y1));
      });
    }
    if (probe) {
      const [x, y] = this.toPixels(probe.x + 0.5, probe.y + 0.5);
      stroke(context, 2, (path) => path.arc(x, y, 5, 0, 2 * Math.PI));
    }
    if (drag) {
      const [[left, top], [right, bottom]] = [
        this.toPixels(drag.x0, drag.y1),
        this.toPixels(drag.x1, drag.y0),
      ];
      stroke(context, 1.5, (path) => path.rect(left, top, right - left, bottom - top));
    }
    context.restore();
  }

  /** Cells to CSS pixels of the canvas. */
  toPixels(x, y) {
    const { plot } = this.box;
    const view = currentView();
    return [
      plot.x + ((x - view.x0) / (view.x1 - view.x0)) * plot.width,
      plot.y + ((view.y1 - y) / (view.y1 - view.y0)) * plot.height,
    ];
  }

  /** A pointer's position in cells; null outside the field, unless it is clamped to the edge. */
  toCells(event, isClamped = false) {
    const { plot } = this.box;
    const frame = this.canvas.getBoundingClientRect();
    const view = currentView();
    let across = (event.clientX - frame.left - plot.x) / plot.width;
    let up = 1 - (event.clientY - frame.top - plot.y) / plot.height;
    if (isClamped) [across, up] = [across, up].map((share) => Math.min(Math.max(share, 0), 1));
    if (across < 0 || across > 1 || up < 0 || up > 1) return null;
    return { x: view.x0 + across * (view.x1 - view.x0), y: view.y0 + up * (view.y1 - view.y0) };
  }
}

/** Dark under light, visible on any colour. */
function stroke(context, width, trace) {
  for (const [colour, more] of [["#0009", 1], ["#fffc", 0]]) {
    context.strokeStyle = colour;
    context.lineWidth = width + more;
    context.beginPath();
    trace(context);
    context.stroke();
  }
}

function wrap(context, text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (context.measureText(longer).width > width && lines.at(-1)) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}
