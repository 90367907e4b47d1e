// Requests to the server. Refusals become errors with the server's message.

import { readBlocks, readSafetensors, writeSafetensors } from "./formats.js";

const SAFETENSORS = "application/vnd.safetensors";
const TOKEN = "pibert-token";

let askToken = null;

/** Set the function that asks the user for the token; it returns null if there is none. */
export function onUnauthorized(ask) {
  askToken = ask;
}

async function request(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers };
    const token = sessionStorage.getItem(TOKEN);
    if (token) headers.Authorization = `Bearer ${token}`;
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("the server does not answer; is it still running?");
    }
    if (answer.ok) return answer;
    if (answer.status === 401) {
      // Another request may have been given the token in the meantime.
      if (sessionStorage.getItem(TOKEN) !== token) continue;
      const given = await askToken(token !== null);
      if (given) {
        sessionStorage.setItem(TOKEN, given);
        continue;
      }
    }
    throw new Error(await words(answer));
  }
}

async function words(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answered ${answer.status} ${answer.statusText}`;
  }
}

async function bytesOf(answer) {
  return new Uint8Array(await answer.arrayBuffer());
}

function post(path, body, signal, type = SAFETENSORS) {
  const headers = { "Content-Type": type, Accept: SAFETENSORS };
  return request(path, { method: "POST", headers, body, signal });
}

export async function getModels() {
  return (await request("models")).json();
}

export async function getSamples() {
  return (await request("v1/samples")).json();
}

/** Frames of a recording up to `stop`; null: as many as one answer may hold. */
export async function getFrames(id, start, stop, signal) {
  const end = stop === null ? "" : `&stop=${stop}`;
  const path = `v1/samples/${encodeURIComponent(id)}?start=${start}${end}`;
  return readSafetensors(
    await bytesOf(await request(path, { headers: { Accept: SAFETENSORS }, signal })),
  );
}

/** The frames of a file; `facts`: its name and the metadata overrides. */
export async function openFile(bytes, facts, signal) {
  const path = `v1/open?${new URLSearchParams(facts)}`;
  const answer = await post(path, bytes, signal, "application/octet-stream");
  return readSafetensors(await bytesOf(answer));
}

export async function step(arrays, facts, signal) {
  const answer = await post("v1/step", writeSafetensors(arrays, facts), signal);
  return readSafetensors(await bytesOf(answer));
}

export async function explain(arrays, facts, signal) {
  const answer = await post("v1/explain", writeSafetensors(arrays, facts), signal);
  return readSafetensors(await bytesOf(answer));
}

export async function* rollout(arrays, facts, signal) {
  const answer = await post("v1/rollout", writeSafetensors(arrays, facts), signal);
  yield* readBlocks(answer.body);
}
