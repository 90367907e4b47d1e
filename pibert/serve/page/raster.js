// A field as pixels: row 0 at the bottom, a body grey, points that are not known hatched.

import { colourIndex, pack } from "./colours.js";

/**
 * Fill an image with the visible range of a field.
 *
 * look: scale, body (1 inside; may be missing), isSmooth (between points, else cells), and colours
 * with body, unknown and hatch.
 */
export function fillImage(image, values, [ny, nx], view, { scale, body, isSmooth, colours }) {
  const { width, height } = image;
  const pixels = new Uint32Array(image.data.buffer);
  const [solid, unknown, hatch] = [colours.body, colours.unknown, colours.hatch].map(packHex);
  const across = neighbours(view.x0, view.x1, width, nx);
  const up = neighbours(view.y1, view.y0, height, ny);
  for (let py = 0; py < height; py++) {
    const own = up.own[py] * nx;
    const low = up.low[py] * nx;
    const high = up.high[py] * nx;
    const b = up.weight[py];
    for (let px = 0; px < width; px++) {
      const position = own + across.own[px];
      let value = values[position];
      let colour;
      if (body?.[position]) colour = solid;
      else if (!Number.isFinite(value)) colour = (px + py) % 8 < 2 ? hatch : unknown;
      else {
        if (isSmooth) {
          const left = across.low[px];
          const right = across.high[px];
          const a = across.weight[px];
          const below = (1 - a) * values[low + left] + a * values[low + right];
          const above = (1 - a) * values[high + left] + a * values[high + right];
          const between = (1 - b) * below + b * above;
          if (Number.isFinite(between)) value = between; // else beside unknown points
        }
        colour = scale.colours[colourIndex(scale, value)];
      }
      pixels[py * width + px] = colour;
    }
  }
}

function packHex(hex) {
  return pack([1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
}

/** For each pixel along an axis: its cell, the points around it, and the weight of the second. */
function neighbours(start, end, pixels, cells) {
  const [own, low, high] = [0, 0, 0].map(() => new Int32Array(pixels));
  const weight = new Float64Array(pixels);
  for (let n = 0; n < pixels; n++) {
    const position = start + ((n + 0.5) / pixels) * (end - start);
    const between = Math.min(Math.max(position - 0.5, 0), cells - 1);
    own[n] = Math.min(Math.floor(position), cells - 1);
    low[n] = Math.floor(between);
    high[n] = Math.min(low[n] + 1, cells - 1);
    weight[n] = between - low[n];
  }
  return { own, low, high, weight };
}
