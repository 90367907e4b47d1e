// Recordings, and quantities of a frame: components, vorticity, errors, values along a line.
// A frame is channel after channel of rows, row 0 at the bottom; NaN where nothing is known.

/** A recording, filled as its frames arrive. Every `stride`-th frame is shown. */
export class Recording {
  constructor(facts, shape) {
    this.name = facts.name ?? "file";
    this.channels = facts.channels;
    this.stated = facts;
    this.shape = shape;
    this.parameters = facts.parameters ?? {};
    this.notes = facts.notes ?? [];
    this.predicted = facts.predicted ?? null; // by which model: then it is not ground truth
    this.total = facts.frames;
    this.stride = 1;
    this.all = [];
    this.extremes = {};
    this.fitTo(null);
  }

  /** Spacing, units and time step: those that the file states, else those of a model. */
  fitTo(model) {
    const { grid: own = {}, units, dt, uneven, t0 } = this.stated;
    const { length_unit: length, time_unit: time } = this.stated;
    this.hasSpacing = Number.isFinite(own.dx);
    const side = (name, spacing, count) => {
      if (this.hasSpacing) return [own[spacing], own[name] ?? 0];
      const theirs = model?.grid;
      if (!theirs) return [1, 0];
      // It covers the domain of the model.
      const points = theirs.shape[spacing === "dx" ? 1 : 0];
      const step = (theirs[spacing] * points) / count;
      return [step, theirs[name] + (step - theirs[spacing]) / 2];
    };
    [this.dx, this.x0] = side("x0", "dx", this.shape[1]);
    [this.dy, this.y0] = side("y0", "dy", this.shape[0]);
    const unitOf = (name, n) => model?.units[model.channels.indexOf(name)] ?? units?.[n] ?? "1";
    this.units = units ?? this.channels.map(unitOf);
    // Unevenly spaced frames have no time step; the model's does not apply.
    this.dt = uneven ? null : (dt ?? model?.dt ?? null);
    this.t0 = t0 ?? 0;
    const named = (unit) => (unit && unit !== "1" ? unit : null);
    const velocity = unitsIn(this.unit("speed"));
    this.lengthUnit = named(length) ?? velocity.length ?? "";
    this.timeUnit = named(time) ?? velocity.time ?? "";
    this.setStride(this.strideFor(model));
    const isSame = !this.hasSpacing && model && `${model.grid.shape}` === `${this.shape}`;
    this.setBody(isSame && model.grid.body ? Uint8Array.from(model.grid.body.flat()) : null);
  }

  x(cell) {
    return this.x0 + cell * this.dx;
  }

  y(cell) {
    return this.y0 + cell * this.dy;
  }

  get cells() {
    return this.shape[0] * this.shape[1];
  }

  get count() {
    return Math.ceil(this.all.length / this.stride);
  }

  /** Take the frames of an answer. */
  add({ arrays }) {
    const { fields, known, body, filled } = arrays;
    const size = this.channels.length * this.cells;
    for (let t = 0; t < fields.shape[0]; t++) {
      const of = (array) =>
        array && (array.shape.length === 2 ? array.data : cut(array.data, t, this.cells));
      const own = { known: of(known), body: of(body), filled: of(filled) };
      this.all.push({ values: cut(fields.data, t, size), ...own, own });
    }
  }

  at(index) {
    return this.all[index * this.stride]?.values ?? null;
  }

  /** What is known at a frame; after the last one, what was known there. */
  known(index) {
    return this.nearest(index).known;
  }

  /** The points at a frame that are ground truth: known, and not filled by a program or model. */
  measured(index) {
    const { known, filled } = this.nearest(index);
    return filled ? known.map((is, i) => is & !filled[i]) : known;
  }

  body(index) {
    return this.nearest(index).body;
  }

  nearest(index) {
    return this.all[Math.min(index * this.stride, this.all.length - 1)];
  }

  /** Set the body if the recording states none; null: no body. */
  setBody(body) {
    for (const frame of this.all) {
      const { own } = frame;
      frame.body = own.body ?? body;
      frame.known = own.body || !body ? own.known : own.known.map((known, i) => known & !body[i]);
    }
    this.extremes = {};
  }

  /** Number of recorded frames per step of a model. */
  strideFor(model) {
    if (!this.dt || !model?.dt) return 1;
    const ratio = model.dt / this.dt;
    const whole = Math.round(ratio);
    return whole >= 1 && Math.abs(ratio - whole) < 0.01 * ratio ? whole : 1;
  }

  setStride(stride) {
    if (stride !== this.stride) [this.stride, this.extremes] = [stride, {}];
  }

  time(index) {
    return this.dt ? this.t0 + index * this.stride * this.dt : null;
  }

  unit(component) {
    const channel = component === "speed" ? velocityOf(this.channels)[0] : component;
    const unit = this.units[this.channels.indexOf(channel)] ?? "";
    return unit === "1" ? "" : unit;
  }
}

/** The units of length and time in that of a velocity; none if it has another form. */
export function unitsIn(velocity) {
  const [, length, time] = /^(\w+)\/(\w+)$/.exec(velocity) ?? [];
  return { length, time };
}

function cut(data, index, size) {
  return data.subarray(index * size, (index + 1) * size);
}

/** Names of the two velocity components; the first two channels if none is called u and v. */
export function velocityOf(channels) {
  const named = channels.includes("u") && channels.includes("v");
  return named ? ["u", "v"] : channels.slice(0, 2);
}

export function channel(frame, channels, name, cells) {
  const position = channels.indexOf(name);
  return position < 0 ? null : cut(frame, position, cells);
}

/** A channel, or the speed; null if the frame does not have it. */
export function component(frame, channels, name, cells) {
  if (name !== "speed") return channel(frame, channels, name, cells);
  const [u, v] = velocityOf(channels).map((own) => channel(frame, channels, own, cells));
  return u && v ? u.map((value, i) => Math.hypot(value, v[i])) : null;
}

export function masked(values, known) {
  return known && values ? values.map((value, i) => (known[i] ? value : NaN)) : values;
}

/** dv/dx - du/dy by central differences, one-sided at the edges and beside unknown points. */
export function vorticity(u, v, [ny, nx], dx, dy) {
  const found = new Float32Array(ny * nx);
  for (let j = 0; j < ny; j++) {
    for (let i = 0; i < nx; i++) {
      const position = j * nx + i;
      found[position] = Number.isFinite(u[position] + v[position])
        ? slope(v, position, i, nx, 1, dx) - slope(u, position, j, ny, nx, dy)
        : NaN;
    }
  }
  return found;
}

function slope(values, position, index, count, jump, spacing) {
  const has = (side) => {
    const inside = side < 0 ? index > 0 : index < count - 1;
    return inside && Number.isFinite(values[position + side * jump]);
  };
  const [low, high] = [has(-1) ? -1 : 0, has(1) ? 1 : 0];
  if (low === high) return NaN;
  return (values[position + high * jump] - values[position + low * jump]) / ((high - low) * spacing);
}

export function difference(a, b) {
  return a.map((value, i) => value - b[i]);
}

/** Least and largest value; [Infinity, -Infinity] if there is none. */
export function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** The 99 % quantile of the magnitudes, from a subset of the values. */
export function largeSize(values) {
  const stride = Math.ceil(values.length / 4096);
  const sizes = [];
  for (let i = 0; i < values.length; i += stride) {
    if (Number.isFinite(values[i])) sizes.push(Math.abs(values[i]));
  }
  sizes.sort((a, b) => a - b);
  return sizes[Math.floor(0.99 * (sizes.length - 1))] ?? 0;
}

/** sum (prediction - truth)^2 / sum truth^2 over points where both are known. */
export function nmse(prediction, truth) {
  let [error, energy] = [0, 0];
  for (let i = 0; i < truth.length; i++) {
    const gap = prediction[i] - truth[i];
    if (Number.isFinite(gap)) {
      error += gap * gap;
      energy += truth[i] * truth[i];
    }
  }
  return energy > 0 ? error / energy : NaN;
}

/** Between points, in cells: the centre of cell (0, 0) is (0.5, 0.5). */
export function bilinear(values, [ny, nx], x, y) {
  const [px, py] = [clamp(x - 0.5, nx - 1), clamp(y - 0.5, ny - 1)];
  const [i, j] = [Math.min(Math.floor(px), nx - 2), Math.min(Math.floor(py), ny - 2)].map((n) =>
    Math.max(n, 0),
  );
  const [a, b] = [px - i, py - j];
  const [right, up] = [nx > 1 ? 1 : 0, ny > 1 ? nx : 0];
  const position = j * nx + i;
  return (
    (1 - b) * ((1 - a) * values[position] + a * values[position + right]) +
    b * ((1 - a) * values[position + up] + a * values[position + up + right])
  );
}

function clamp(value, most) {
  return Math.min(Math.max(value, 0), most);
}

/** Points of a line in cells, about two per cell, each with its distance from the start. */
export function pointsAlong(line, { dx, dy }) {
  const [spanX, spanY] = [line.x1 - line.x0, line.y1 - line.y0];
  const count = Math.max(2, Math.ceil(2 * Math.hypot(spanX, spanY)) + 1);
  const length = Math.hypot(spanX * dx, spanY * dy);
  return Array.from({ length: count }, (_, n) => {
    const share = n / (count - 1);
    return { x: line.x0 + share * spanX, y: line.y0 + share * spanY, distance: share * length };
  });
}
