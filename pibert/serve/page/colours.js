// Colour maps as tables, and scales from values to them. All are safe for colour-blind readers:
// lightness rises along the sequential ones, the diverging one runs from blue over white to red.

const ANCHORS = {
  viridis:
    "440154 481a6c 472f7d 414487 39568c 31688e 2a788e 23888e 1f988b 22a884 35b779 54c568 7ad151 " +
    "a5db36 d2e21b fde725",
  magma:
    "000004 0b0924 20114b 3b0f70 57157e 721f81 8c2981 a8327d c43c75 de4968 f1605d fa7f5e fe9f6d " +
    "febf84 fddea0 fcfdbf",
  diverging: "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f",
};
const SIZE = 256;

/** 256 colours [red, green, blue] of a map. */
export function table(name) {
  const anchors = ANCHORS[name].split(" ").map((hex) => parseInt(hex, 16));
  return Array.from({ length: SIZE }, (_, i) => {
    const position = (i / (SIZE - 1)) * (anchors.length - 1);
    const left = Math.min(Math.floor(position), anchors.length - 2);
    return [16, 8, 0].map((shift) => {
      const [a, b] = [anchors[left], anchors[left + 1]].map((colour) => (colour >> shift) & 255);
      return Math.round(a + (position - left) * (b - a));
    });
  });
}

// As one number per colour, in the byte order of ImageData.
const PACKED = Object.fromEntries(
  Object.keys(ANCHORS).map((name) => [name, Uint32Array.from(table(name), pack)]),
);

export function pack([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** A scale for values from low to high; signed ones are symmetric around zero. */
export function makeScale(low, high, kind) {
  if (!(low <= high)) [low, high] = [0, 1];
  const isSigned = low < 0 && high > 0 && Math.min(-low, high) > 0.25 * Math.max(-low, high);
  let map = kind === "diagnostic" ? "magma" : "viridis";
  if (kind === "signed" || (kind === "field" && isSigned)) {
    const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    [low, high, map] = [-most, most, "diverging"];
  }
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  return { low, high, colours: PACKED[map] };
}

export function colourIndex(scale, value) {
  const position = ((value - scale.low) / (scale.high - scale.low)) * SIZE;
  return position <= 0 ? 0 : position >= SIZE ? SIZE - 1 : position | 0;
}
