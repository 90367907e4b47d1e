// Numbers as people read them.

/** About four digits, without trailing zeros. */
export function number(value) {
  if (!Number.isFinite(value)) return "unknown";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e5) {
    const [digits, power] = value.toExponential(2).split("e");
    return `${Number(digits)}e${Number(power)}`.replace("-", "−");
  }
  return String(Number(value.toPrecision(4))).replace("-", "−");
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

/** Powers of ten between two ends, at most about `count` of them. */
export function powers(low, high, count) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first + 1) / count));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(10 ** power);
  return found;
}
