// Energy spectra of a velocity field: E(k) with the sum over k of E dk near the mean of
// (u'^2 + v'^2) / 2. A Hann window along each transformed axis lets fields be cut anywhere;
// unknown points count as the mean.

/** Discrete Fourier transform of any length, split by its prime factors. */
export function transform(real, imaginary) {
  const n = real.length;
  const out = [new Float64Array(n), new Float64Array(n)];
  split([real, imaginary], 0, 1, out, 0, n, rootsOf(n));
  return out;
}

const known = new Map();

/** Cosines and sines of the angles -2 pi k / n. */
function rootsOf(n) {
  if (!known.has(n)) {
    const angle = (_, k) => (-2 * Math.PI * k) / n;
    const angles = Array.from({ length: n }, angle);
    known.set(n, [Float64Array.from(angles, Math.cos), Float64Array.from(angles, Math.sin)]);
  }
  return known.get(n);
}

/** Transform n values at `from`, `from + stride` ..., into the positions from `to` on. */
function split(values, from, stride, out, to, n, roots) {
  const [[outReal, outImaginary], [cosine, sine]] = [out, roots];
  if (n === 1) {
    outReal[to] = values[0][from];
    outImaginary[to] = values[1][from];
    return;
  }
  const factor = smallestFactor(n);
  const m = n / factor;
  for (let r = 0; r < factor; r++) {
    split(values, from + r * stride, stride * factor, out, to + r * m, m, roots);
  }
  const whole = cosine.length;
  const [partReal, partImaginary] = [new Float64Array(factor), new Float64Array(factor)];
  for (let k = 0; k < m; k++) {
    for (let r = 0; r < factor; r++) {
      const position = to + r * m + k;
      const turn = r * k * stride;
      partReal[r] = outReal[position] * cosine[turn] - outImaginary[position] * sine[turn];
      partImaginary[r] = outReal[position] * sine[turn] + outImaginary[position] * cosine[turn];
    }
    for (let q = 0; q < factor; q++) {
      let a = 0;
      let b = 0;
      for (let r = 0; r < factor; r++) {
        const turn = (r * q * m * stride) % whole;
        a += partReal[r] * cosine[turn] - partImaginary[r] * sine[turn];
        b += partReal[r] * sine[turn] + partImaginary[r] * cosine[turn];
      }
      outReal[to + q * m + k] = a;
      outImaginary[to + q * m + k] = b;
    }
  }
}

function smallestFactor(n) {
  for (let factor = 2; factor * factor <= n; factor++) if (n % factor === 0) return factor;
  return n;
}

function hann(n) {
  return Float64Array.from({ length: n }, (_, i) => Math.sin((Math.PI * (i + 0.5)) / n) ** 2);
}

/** Along x, the mean over rows; u and v have ny rows, NaN where nothing is known. */
export function streamwise(u, v, [ny, nx], dx) {
  const window = hann(nx);
  const half = Math.floor((nx - 1) / 2);
  const step = (2 * Math.PI) / (nx * dx);
  const energy = new Float64Array(half);
  for (let row = 0; row < ny; row++) {
    const [a, b] = transform(
      ...[u, v].map((values) =>
        fluctuation(values.subarray(row * nx, (row + 1) * nx)).map((own, i) => own * window[i]),
      ),
    );
    // Of u + iv, the squares at k and -k are together twice those of u and of v.
    for (let k = 1; k <= half; k++) {
      energy[k - 1] += (a[k] ** 2 + b[k] ** 2 + a[nx - k] ** 2 + b[nx - k] ** 2) / 2;
    }
  }
  // 3/8 is the mean square of the window; both signs of k make up for the half of the energy.
  return spectrum(energy, step, 1 / (ny * nx ** 2 * 0.375 * step));
}

/** Over rings of the wave vector's length, as wide as the larger of the two smallest steps. */
export function radial(u, v, [ny, nx], dx, dy) {
  const [wx, wy] = [hann(nx), hann(ny)];
  const [stepX, stepY] = [(2 * Math.PI) / (nx * dx), (2 * Math.PI) / (ny * dy)];
  const step = Math.max(stepX, stepY);
  const count = Math.floor(Math.min((stepX * nx) / 2, (stepY * ny) / 2) / step);
  const energy = new Float64Array(count);
  const whole = [u, v].map(fluctuation);
  const rows = Array.from({ length: ny }, (_, j) => {
    const weighted = (own, i) => own * wx[i] * wy[j];
    return transform(...whole.map((own) => own.subarray(j * nx, (j + 1) * nx).map(weighted)));
  });
  for (let i = 0; i < nx; i++) {
    const column = (part) => Float64Array.from(rows, (row) => row[part][i]);
    const [a, b] = transform(column(0), column(1));
    const kx = stepX * Math.min(i, nx - i);
    for (let j = 0; j < ny; j++) {
      const ring = Math.round(Math.hypot(kx, stepY * Math.min(j, ny - j)) / step);
      if (ring >= 1 && ring <= count) energy[ring - 1] += a[j] ** 2 + b[j] ** 2;
    }
  }
  return spectrum(energy, step, 1 / (2 * (nx * ny) ** 2 * 0.375 ** 2 * step));
}

function spectrum(energy, step, weight) {
  const found = Array.from(energy, (own) => own * weight);
  return { k: found.map((_, i) => (i + 1) * step), energy: found };
}

function fluctuation(values) {
  let sum = 0;
  let count = 0;
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i])) {
      sum += values[i];
      count += 1;
    }
  }
  const mean = count ? sum / count : 0;
  const found = new Float64Array(values.length);
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i])) found[i] = values[i] - mean;
  }
  return found;
}
