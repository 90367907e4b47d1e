// Numbers as text.

/** About four digits, without trailing zeros. */
export function number(value) {
  if (!Number.isFinite(value)) return "unknown";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e5) {
    const [digits, power] = value.toExponential(2).split("e");
    return `${Number(digits)}e${Number(power)}`.replaceAll("-", "−");
  }
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

export function withUnit(text, unit) {
  return unit ? `${text} ${unit}` : text;
}

export function axisLabel(name, unit) {
  return unit ? `${name} (${unit})` : name;
}

/** Round numbers between two ends, about `count` of them. */
export function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0) || !Number.isFinite(rough)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, n) => (first + n) * step);
}

/** The same, but never fewer than `least`: the ends themselves if there are no round numbers. */
export function someTicks(low, high, count, least) {
  for (let wanted = Math.max(count, least); wanted < 12; wanted *= 1.3) {
    const found = ticks(low, high, wanted);
    if (found.length >= least) return found;
  }
  return [low, high];
}

/** Round numbers between two ends of a logarithmic axis, about `count` of them. */
export function logTicks(low, high, count) {
  const decades = powers(low, high, count);
  if (decades.length > 2) return decades;
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    found.push(...[1, 2, 5].map((n) => n * 10 ** power));
  }
  const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.length > 1 ? inside : ticks(low, high, 3);
}

/** Labels of ticks, with a common power of ten separate: {labels, power}. */
export function shortLabels(values) {
  const most = Math.max(...values.map(Math.abs));
  const size = most > 0 ? Math.floor(Math.log10(most) + 1e-9) : 0;
  const power = size < -2 || size > 3 ? size : 0;
  return { labels: values.map((value) => number(value / 10 ** power)), power };
}

export function powerOfTen(power) {
  const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  return `×10${[...String(power)].map((d) => (d === "-" ? "⁻" : digits[d])).join("")}`;
}

/** Powers of ten between two ends, at most about `count` of them. */
function powers(low, high, count) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first + 1) / count));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(10 ** power);
  return found;
}
