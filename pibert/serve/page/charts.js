// Line charts as SVG; their colours come from the style sheet.

import { logTicks, number, ticks } from "./numbers.js";

const MARGIN = { left: 56, right: 12, top: 8, bottom: 38 };
const HEIGHT = 220;

function element(name, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A chart in a figure with an svg, a legend and an output for the values at the pointer. */
export class Chart {
  constructor(figure, onPick = null) {
    this.svg = figure.querySelector("svg");
    this.legend = figure.querySelector(".legend");
    this.output = figure.querySelector("output");
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.hover(null));
    if (onPick) {
      this.svg.addEventListener("click", (event) => {
        const position = this.positionOf(event);
        if (position !== null) onPick(position);
      });
    }
  }

  /**
   * spec: title, x and y (axis labels), series [{name, kind, x, y}], and maybe band {x, low, high},
   * at (an x to mark), span (range of x to show), isLog (both axes), isLogY, caption; or note,
   * a text instead of lines.
   */
  draw(spec) {
    this.spec = spec;
    const width = Math.max(240, this.svg.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren();
    this.legend.replaceChildren();
    this.output.textContent = "";
    const all = (spec.series ?? []).map((own) => within(own, spec.span));
    const series = all.filter(({ y }) => y.some(Number.isFinite));
    this.series = series;
    if (!series.length) {
      this.note(spec.note ?? "Nothing to show yet.", width);
      return;
    }
    this.plot = {
      x: MARGIN.left,
      y: MARGIN.top,
      width: width - MARGIN.left - MARGIN.right,
      height: HEIGHT - MARGIN.top - MARGIN.bottom,
    };
    this.setScales(spec, series);
    this.drawAxes(spec);
    if (spec.band) this.drawBand(spec.band);
    for (const { kind, x, y } of series) {
      this.svg.append(element("path", { class: `line ${kind}`, d: this.path(x, y) }));
    }
    if (Number.isFinite(spec.at)) this.svg.append(this.upright(spec.at, "now"));
    this.cursor = element("line", { class: "cursor" });
    this.svg.append(this.cursor);
    this.explain(spec, series);
  }

  note(words, width) {
    const position = { x: width / 2, y: HEIGHT / 2, class: "note", "text-anchor": "middle" };
    this.svg.append(element("text", position, words));
    this.svg.setAttribute("aria-label", `${this.spec.title}: ${words}`);
    this.plot = null;
  }

  setScales(spec, series) {
    const [logX, logY] = [spec.isLog, spec.isLog || spec.isLogY];
    const bandEnds = spec.band ? [...spec.band.low, ...spec.band.high] : [];
    this.toX = scaleOf(series.flatMap(({ x }) => x), logX, this.plot.x, this.plot.width, 0);
    const heights = [...series.flatMap(({ y }) => y), ...bandEnds];
    const bottom = this.plot.y + this.plot.height;
    this.toY = scaleOf(heights, logY, bottom, -this.plot.height, 0.06);
  }

  drawAxes({ x, y }) {
    const { plot } = this;
    const [right, bottom] = [plot.x + plot.width, plot.y + plot.height];
    this.svg.append(element("rect", { class: "frame", ...plot }));
    for (const tick of this.toX.ticks(plot.width / 70)) {
      const position = this.toX(tick);
      this.svg.append(
        element("line", { class: "grid", x1: position, x2: position, y1: plot.y, y2: bottom }),
        element("text", { x: position, y: bottom + 15, "text-anchor": "middle" }, number(tick)),
      );
    }
    for (const tick of this.toY.ticks(plot.height / 40)) {
      const position = this.toY(tick);
      this.svg.append(
        element("line", { class: "grid", x1: plot.x, x2: right, y1: position, y2: position }),
        element("text", { x: plot.x - 6, y: position + 4, "text-anchor": "end" }, number(tick)),
      );
    }
    const middle = plot.y + plot.height / 2;
    this.svg.append(
      element("text", { x: plot.x + plot.width / 2, y: HEIGHT - 6, "text-anchor": "middle" }, x),
      element(
        "text",
        { x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` },
        y,
      ),
    );
  }

  drawBand({ x, low, high }) {
    const points = x.map((at, n) => [this.toX(at), this.toY(low[n]), this.toY(high[n])]);
    const whole = points.filter((point) => point.every(Number.isFinite));
    const back = [...whole].reverse();
    const edge = [...whole.map(([a, b]) => `${a},${b}`), ...back.map(([a, , c]) => `${a},${c}`)];
    this.svg.append(element("polygon", { class: "band", points: edge.join(" ") }));
  }

  path(x, y) {
    let isDown = false;
    return x
      .map((at, n) => {
        const [px, py] = [this.toX(at), this.toY(y[n])];
        if (!Number.isFinite(px) || !Number.isFinite(py)) {
          isDown = false;
          return "";
        }
        const command = isDown ? "L" : "M";
        isDown = true;
        return `${command}${px.toFixed(1)},${py.toFixed(1)}`;
      })
      .join("");
  }

  upright(at, kind) {
    const [x, { plot }] = [this.toX(at), this];
    return element("line", { class: kind, x1: x, x2: x, y1: plot.y, y2: plot.y + plot.height });
  }

  /** Legend, and the text alternative: the ends of each line. */
  explain(spec, series) {
    const entries = series.map(({ name, kind }) => [name, `line ${kind}`]);
    if (spec.band) entries.push([spec.band.name, "band"]);
    for (const [name, kind] of entries) {
      const key = element("svg", { viewBox: "0 0 22 10", class: "key", "aria-hidden": "true" });
      const shape =
        kind === "band"
          ? element("rect", { class: kind, width: 22, height: 10 })
          : element("path", { class: kind, d: "M0,5L22,5" });
      key.append(shape);
      const item = document.createElement("span");
      item.append(key, name);
      this.legend.append(item);
    }
    if (spec.caption) {
      const words = document.createElement("i");
      words.textContent = spec.caption;
      this.legend.append(words);
    }
    const ends = series.map(({ name, y }) => {
      const known = y.filter(Number.isFinite);
      return `${name} from ${number(Math.min(...known))} to ${number(Math.max(...known))}`;
    });
    this.svg.setAttribute("aria-label", `${spec.title}: ${ends.join("; ")}`);
  }

  positionOf(event) {
    if (!this.plot) return null;
    const { left } = this.svg.getBoundingClientRect();
    const position = event.clientX - left;
    const isInside = position >= this.plot.x && position <= this.plot.x + this.plot.width;
    return isInside ? this.toX.back(position) : null;
  }

  hover(event) {
    const at = event && this.positionOf(event);
    if (at === null || !this.plot) {
      this.cursor?.removeAttribute("x1");
      this.output.textContent = "";
      return;
    }
    const { x } = this.series[0];
    const gap = (own) => Math.abs(own - at);
    const nearest = x.reduce((best, own) => (gap(own) < gap(best) ? own : best));
    const line = this.upright(nearest, "cursor");
    this.cursor.replaceWith(line);
    this.cursor = line;
    const values = this.series.map(({ name, x: own, y }) => {
      const position = own.indexOf(nearest);
      return position < 0 ? "" : `${name} ${number(y[position])}`;
    });
    const shown = [`${this.spec.x} ${number(nearest)}`, ...values.filter(Boolean)];
    this.output.textContent = shown.join(" · ");
  }
}

/** The points of a line within a range of x. */
function within(line, span) {
  if (!span) return line;
  const isInside = (_, n) => line.x[n] >= span[0] && line.x[n] <= span[1];
  return { ...line, x: line.x.filter(isInside), y: line.y.filter(isInside) };
}

/** From values to pixels; `back` is its inverse. */
function scaleOf(values, isLog, start, length, padding) {
  const inner = isLog ? Math.log10 : (value) => value;
  const outer = isLog ? (value) => 10 ** value : (value) => value;
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    const own = isLog && value <= 0 ? NaN : inner(value);
    if (own < low) low = own;
    if (own > high) high = own;
  }
  if (!(low <= high)) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const room = padding * (high - low);
  [low, high] = [low - room, high + room];
  const scale = (value) => start + ((inner(value) - low) / (high - low)) * length;
  scale.back = (position) => outer(low + ((position - start) / length) * (high - low));
  scale.ticks = (count) => (isLog ? logTicks : ticks)(outer(low), outer(high), count);
  return scale;
}
