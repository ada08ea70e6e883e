// Elements as function calls. Text is always text: nothing here, or in the page, parses HTML.

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function math(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(MATH, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value); // allowed where style attributes are not
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) // one by one: a call has room for so many arguments only
    if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

export const byId = (id) => document.getElementById(id);

export function button(text, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, text);
}

export function saveFile(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export function tell(text) {
  byId("status").textContent = text;
}
