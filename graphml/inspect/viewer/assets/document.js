// The document out of its compact form: see columns.py, which makes it.

async function readDocument() {
  const letters = atob(document.getElementById("document").textContent);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const { document: packed, values } = JSON.parse(await new Response(stream).text());
  packed.passes = packed.passes.map((one) => unpackPass(one, values));
  return packed;
}

function unpackPass({ columns, size, ...rest }, values) {
  const nodes = Array.from({ length: size }, () => ({ inputs: [] }));
  for (const [key, column] of Object.entries(columns)) {
    if (key === "inputs") continue;
    column.forEach((place, at) => { nodes[at][key] = values[place]; });
  }
  (columns.inputs || []).forEach((places, at) => {
    nodes[at].inputs = places.map((place) => (typeof place === "number" ? nodes[place].name : place));
  });
  return { ...rest, nodes };
}

// Small helpers for elements. Text of the document only ever becomes textContent or an attribute's value.
const SVG = "http://www.w3.org/2000/svg";

// Calls move with each movement of a pressed pointer, then stop once. The browser may take the pointer away, as for a
// touch that scrolls, and a button released outside of the window is seen at the next movement only.
function whileDragged(move, stop = () => {}) {
  const ended = new AbortController();
  const listen = (name, heard) => window.addEventListener(name, heard, { signal: ended.signal });
  const end = () => { ended.abort(); stop(); };
  listen("pointermove", (event) => (event.buttons ? move(event) : end()));
  for (const name of ["pointerup", "pointercancel", "lostpointercapture", "blur"]) listen(name, end);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function formatBytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = Number(count);
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

function formatTime(us) {
  if (us === null || us === undefined) return "";
  return us >= 1000 ? `${(us / 1000).toPrecision(3)} ms` : `${Number(us).toPrecision(3)} µs`;
}

function formatError(nmse) {
  return nmse === null || nmse === undefined ? "" : Number(nmse).toExponential(1);
}

function formatShape(node) {
  const shape = (node.shape || []).map((dim) => String(dim).replace("<=", "≤"));
  // A value of several parts has their shapes in its type.
  const type = String(node.dtype).replaceAll("<=", "≤");
  return type.startsWith("(") ? type : `${type} [${shape.join(", ")}]`;
}

function formatShare(value) {
  return `${(100 * value).toPrecision(value >= 0.1 ? 3 : 2)} %`;
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}
