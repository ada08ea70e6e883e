// Requests to the server that this page comes from, and to no other. Knows paths and events, no elements.

import { byId } from "./dom.js";

const KEY = "graphml-key";

// field: the one of the request that is wrong, where the server names one.
export class ServerError extends Error {
  constructor({ message, param, status }) {
    super(message);
    Object.assign(this, { field: param, status });
  }
}

let model = ""; // the one that requests name; none: the server's first

export function chooseModel(name) {
  model = name;
}

async function request(named, options = {}) {
  const path = model ? `${named}${named.includes("?") ? "&" : "?"}model=${encodeURIComponent(model)}` : named;
  for (;;) {
    const headers = { ...options.headers };
    const key = sessionStorage.getItem(KEY);
    if (key) headers.Authorization = `Bearer ${key}`;
    const response = await fetch(path, { ...options, headers });
    if (response.status === 401 && (await askForKey())) continue;
    if (!response.ok) throw new ServerError({ ...(await complaint(response)), status: response.status });
    return response;
  }
}

async function complaint(response) {
  const text = await response.text();
  try {
    const { message, param } = JSON.parse(text).error;
    return { message: message || text, param };
  } catch {
    return { message: `${response.status} ${response.statusText}` };
  }
}

let asked = null; // one question for all requests that were refused meanwhile

function askForKey() {
  asked ||= new Promise((resolve) => {
    const dialog = byId("key");
    dialog.addEventListener("close", () => {
      const value = byId("key-value").value.trim();
      byId("key-value").value = "";
      if (value) sessionStorage.setItem(KEY, value);
      asked = null;
      resolve(Boolean(value));
    }, { once: true });
    dialog.showModal();
  });
  return asked;
}

export async function get(path) {
  return (await request(path)).json();
}

export async function getFile(path) {
  return (await request(path)).blob();
}

export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

// The chunks of a streamed answer as objects; name: by which another page reads it on. An event that is an error ends it.
export async function* stream(path, body, signal, name) {
  const headers = { "Content-Type": "application/json", "X-Conversation-Id": name };
  yield* chunks(await request(path, { method: "POST", headers, body: JSON.stringify(body), signal }));
}

// The chunks of a stream from that number on; ServerError with the status 404 where it is not kept any more.
export async function* resumed(name, from, signal) {
  yield* chunks(await request(`v1/stream?conv_id=${encodeURIComponent(name)}&from=${from}`, { signal }));
}

// Nobody reads a stream on.
export async function endStream(name) {
  await request(`v1/stream?conv_id=${encodeURIComponent(name)}`, { method: "DELETE" });
}

async function* chunks(response) {
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError({ message: chunk.error.message || "the server has failed" });
    yield chunk;
  }
  throw new Error("the answer was cut off");
}

// The data of server-sent events; comments (pings) and other fields are left out.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      waiting += value;
      const parts = waiting.split(/\r?\n\r?\n/);
      waiting = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
