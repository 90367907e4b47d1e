// Arrays as bytes: safetensors and npy files, and streams of blocks (docs/serving.md).
// An array is {shape, data}, its data in row-major order.

const KINDS = {
  F32: Float32Array,
  F64: Float64Array,
  U8: Uint8Array,
  BOOL: Uint8Array,
  I32: Int32Array,
};

/** Arrays and facts of a safetensors file; texts that are JSON are parsed. */
export function readSafetensors(bytes) {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const arrays = {};
  const facts = {};
  for (const [name, text] of Object.entries(header.__metadata__ ?? {})) {
    facts[name] = parsed(text);
  }
  delete header.__metadata__;
  for (const [name, entry] of Object.entries(header)) {
    const Kind = KINDS[entry.dtype];
    if (!Kind) throw new Error(`expected numbers in ${name}, found ${entry.dtype}`);
    // A copy: an array must start at a multiple of its item size.
    const [begin, end] = entry.data_offsets.map((offset) => 8 + length + offset);
    arrays[name] = { shape: entry.shape, data: new Kind(bytes.slice(begin, end).buffer) };
  }
  return { arrays, facts };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A safetensors file of float32 and uint8 arrays; facts become texts. */
export function writeSafetensors(arrays, facts) {
  const header = { __metadata__: {} };
  for (const [name, fact] of Object.entries(facts)) {
    header.__metadata__[name] = typeof fact === "string" ? fact : JSON.stringify(fact);
  }
  let offset = 0;
  for (const [name, { shape, data }] of Object.entries(arrays)) {
    const dtype = data instanceof Float32Array ? "F32" : "U8";
    header[name] = { dtype, shape, data_offsets: [offset, offset + data.byteLength] };
    offset += data.byteLength;
  }
  let text = new TextEncoder().encode(JSON.stringify(header));
  const padding = (8 - (text.length % 8)) % 8;
  text = new TextEncoder().encode(JSON.stringify(header) + " ".repeat(padding));
  const bytes = new Uint8Array(8 + text.length + offset);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(text, 8);
  let position = 8 + text.length;
  for (const { data } of Object.values(arrays)) {
    bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), position);
    position += data.byteLength;
  }
  return bytes;
}

/** An npy file of float32, version 1. */
export function writeNpy({ shape, data }) {
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  let header = `{'descr': '<f4', 'fortran_order': False, 'shape': ${tuple}, }`;
  header += " ".repeat(63 - ((10 + header.length) % 64)) + "\n";
  const bytes = new Uint8Array(10 + header.length + data.byteLength);
  bytes.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  bytes.set(new TextEncoder().encode(header), 10);
  bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 10 + header.length);
  return bytes;
}

const END = 0;
const ERROR = 0xffffffff;

/** The safetensors files of a stream of blocks, as they arrive. */
export async function* readBlocks(stream) {
  const reader = new ByteReader(stream);
  try {
    for (;;) {
      const length = await reader.number();
      if (length === END) {
        await reader.finish();
        return;
      }
      if (length === ERROR) {
        const text = new TextDecoder().decode(await reader.take(await reader.number()));
        throw new Error(JSON.parse(text).error.message);
      }
      yield readSafetensors(await reader.take(length));
    }
  } finally {
    await reader.close();
  }
}

class ByteReader {
  constructor(stream) {
    this.reader = stream.getReader();
    this.chunks = [];
    this.held = 0;
  }

  async take(count) {
    while (this.held < count) {
      const { value, done } = await this.reader.read();
      if (done) throw new Error("the answer was cut before its end");
      this.chunks.push(value);
      this.held += value.length;
    }
    const taken = new Uint8Array(count);
    let position = 0;
    while (position < count) {
      const part = this.chunks[0].subarray(0, count - position);
      taken.set(part, position);
      position += part.length;
      if (part.length === this.chunks[0].length) this.chunks.shift();
      else this.chunks[0] = this.chunks[0].subarray(part.length);
    }
    this.held -= count;
    return taken;
  }

  async number() {
    return new DataView((await this.take(4)).buffer).getUint32(0, true);
  }

  /** Read to the end: a connection that closes before it is broken. */
  async finish() {
    while (!(await this.reader.read()).done);
  }

  close() {
    return this.reader.cancel().catch(() => {});
  }
}
