// Markdown to elements: paragraphs, headings, lists, quotes, tables, rules, code, links, emphasis, math.
// A model's text is foreign: links go to http and https alone, images are links, HTML stays text, and no text
// takes more than a few passes over it.

import { button, element } from "./dom.js";
import { formula } from "./math.js";

export function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|$)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITERS = /^\|?(?: *:?-+:? *\|)+(?: *:?-+:?)?$/;
const DEEPEST = 12; // nested lists and quotes, and emphasis within emphasis

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at, depth);
    if (node) found.push(node);
    at = next;
  }
  return found;
}

// The block that begins at a line, and the line behind it.
function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  if (/^ {0,3}(\$\$|\\\[)/.test(line)) {
    const display = formulaBlock(lines, at);
    if (display) return display;
  }
  const heading = HEADING.exec(line);
  if (heading) return [element(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(unhashed(heading[2]))), at + 1];
  if (RULE.test(line)) return [element("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) {
    const end = until(lines, at, (one) => !one.trim());
    const inside = lines.slice(at, end).map((one) => one.replace(QUOTE, ""));
    return [element("blockquote", {}, blocks(inside, depth + 1)), end];
  }
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && DELIMITERS.test((lines[at + 1] ?? "").trim())) return table(lines, at);
  const end = until(lines, at + 1, (one) => !one.trim() || FENCE.test(one) || HEADING.test(one) || ITEM.test(one) || QUOTE.test(one));
  return [element("p", {}, inline(lines.slice(at, end).join("\n"))), end];
}

function until(lines, at, ends) {
  while (at < lines.length && !ends(lines[at])) at += 1;
  return at;
}

function code(lines, at, [, mark, language]) {
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  const end = until(lines, at + 1, (one) => closing.test(one)); // an answer that is still coming has no end yet
  const text = lines.slice(at + 1, end).join("\n");
  const copy = button("Copy", async (event) => {
    await navigator.clipboard.writeText(text);
    event.target.textContent = "Copied";
  });
  const head = element("div", { class: "code-head" }, element("span", {}, language.trim().split(/\s/)[0]), copy);
  return [element("div", { class: "code" }, head, element("pre", { tabindex: "0" }, element("code", {}, text))), end + 1];
}

function formulaBlock(lines, at) {
  const [open, close] = lines[at].trimStart().startsWith("$$") ? ["$$", "$$"] : ["\\[", "\\]"];
  const rest = lines.slice(at, at + 60).join("\n").trimStart().slice(open.length);
  const end = rest.indexOf(close);
  if (end < 0 || rest.slice(end + close.length).split("\n")[0].trim()) return null;
  const used = rest.slice(0, end + close.length).split("\n").length;
  return [element("div", { class: "display" }, formula(rest.slice(0, end), true)), at + used];
}

function list(lines, at, depth) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(marker);
  const start = ordered ? parseInt(marker, 10) : 1;
  const node = element(ordered ? "ol" : "ul", start > 1 ? { start } : {});
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length !== indent.length || /\d/.test(item[2]) !== ordered) break;
    const inside = [item[3] ?? ""];
    const width = indent.length + 2;
    at += 1;
    for (; at < lines.length; at += 1) {
      const deeper = lines[at].search(/\S/) >= width;
      if (!deeper && (ITEM.test(lines[at]) || (!lines[at].trim() && !(lines[at + 1]?.search(/\S/) >= width)))) break;
      if (!deeper && !inside.at(-1)) break;
      inside.push(lines[at].slice(Math.min(lines[at].search(/\S|$/), width)));
    }
    const children = blocks(inside, depth + 1);
    const tight = children.length && children[0].tagName === "P" ? [...children.shift().childNodes] : [];
    node.append(element("li", {}, tight, children));
    if (!lines[at]?.trim() && ITEM.exec(lines[at + 1] ?? "")?.[1].length === indent.length) at += 1;
  }
  return [node, at];
}

function table(lines, at) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((one) => one.trim().replace(/\\\|/g, "|"));
  const align = cells(lines[at + 1]).map((one) => (/^:-+:$/.test(one) ? "center" : /-:$/.test(one) ? "right" : ""));
  const row = (tag, line) => element("tr", {}, cells(line).slice(0, align.length).map((one, i) => element(tag, { class: align[i] || null }, inline(one))));
  const end = until(lines, at + 2, (one) => !one.includes("|"));
  const body = lines.slice(at + 2, end).map((line) => row("td", line));
  const node = element("table", {}, element("thead", {}, row("th", lines[at])), element("tbody", {}, body));
  return [element("div", { class: "wide" }, node), end];
}

// A heading's text without the hashes that may end it.
function unhashed(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end -= 1;
  return text.slice(0, end).trimEnd();
}

const SPECIAL = /[`\\$![h*_~ ]/g;
const TICKS = /`+/g;
const MATH = /\$(?![\s\d])((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/y;
const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const LABEL_END = /[\]\n]/g;
const TARGET = /\]\(\s{0,99}<?([^\s)>]{1,2000})>?(?:\s{1,99}"[^"]{0,999}")?\s{0,99}\)/y;
const ADDRESS = /(?<!\w)https?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?]/y;
const SPACES = / +/y;
// What opens, what closes it from its first character on, and what it becomes; the first that fits counts.
const EMPHASIS = [
  { opens: /\*\*(?=\S)/y, closes: /(?<=\S)\*\*/g, tag: "strong" },
  { opens: /(?<!\w)__(?=\S)/y, closes: /(?<=\S)__(?!\w)/g, tag: "strong" },
  { opens: /\*(?=[^\s*])/y, closes: /(?<=[^\s*])\*/g, tag: "em" },
  { opens: /(?<!\w)_(?=[^\s_])/y, closes: /(?<=[^\s_])_(?!\w)/g, tag: "em" },
  { opens: /~~(?=\S)/y, closes: /(?<=\S)~~/g, tag: "del" },
];

function from(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

// Text within a block. What did not close once is not looked for again, so that each level is one pass.
function inline(text, depth = 0) {
  if (depth > DEEPEST) return [text];
  const found = [], search = { never: new Set(), labels: {}, ticks: null };
  let plain = 0, at = 0;
  for (let special; (special = from(SPECIAL, text, at)); ) {
    at = special.index;
    const [node, next] = special[0] === "`" ? codeSpan(text, at, search) : opened(text, at, search, depth);
    if (node !== null) {
      found.push(text.slice(plain, at), node);
      plain = next;
    }
    at = next;
  }
  return [...found, text.slice(plain)].flat();
}

// What begins at a special character, null for nothing, and where to go on.
function opened(text, at, search, depth) {
  const one = text[at];
  if (one === "\\") {
    const end = text[at + 1] === "(" && !search.never.has("\\)") ? text.indexOf("\\)", at + 3) : -1;
    if (end > 0) return [formula(text.slice(at + 2, end), false), end + 2];
    if (text[at + 1] === "(") search.never.add("\\)");
    const escaped = from(ESCAPED, text, at);
    return escaped ? [escaped[1], at + 2] : [null, at + 1];
  }
  if (one === "$") {
    const match = from(MATH, text, at);
    return match ? [formula(match[1], false), at + match[0].length] : [null, at + 1];
  }
  if (one === "[" || one === "!") return target(text, at, search);
  if (one === "h") {
    const match = from(ADDRESS, text, at);
    return match ? [link(match[0], match[0]), at + match[0].length] : [null, at + 1];
  }
  if (one === " ") {
    const end = at + from(SPACES, text, at)[0].length;
    return text[end] === "\n" && end > at + 1 ? [element("br"), end + 1] : [null, end];
  }
  for (const kind of EMPHASIS) {
    const open = search.never.has(kind) ? null : from(kind.opens, text, at);
    if (!open) continue;
    const begin = at + open[0].length, close = from(kind.closes, text, begin + 1);
    const end = kind.closes.lastIndex; // before what is within is looked through by the same expressions
    if (close) return [element(kind.tag, {}, inline(text.slice(begin, close.index), depth + 1)), end];
    search.never.add(kind);
  }
  return [null, at + 1];
}

// Code between two runs of as many backticks.
function codeSpan(text, at, search) {
  if (!search.ticks) {
    search.ticks = new Map();
    TICKS.lastIndex = 0;
    for (const run of text.matchAll(TICKS)) {
      const size = run[0].length;
      search.ticks.set(size, search.ticks.get(size) ?? []);
      search.ticks.get(size).push(run.index);
    }
    for (const places of search.ticks.values()) places.reverse();
  }
  const begin = at + from(TICKS, text, at)[0].length, places = search.ticks.get(begin - at) ?? [];
  while (places.length && places.at(-1) <= at) places.pop();
  if (!places.length) return [null, begin];
  const end = places.pop(), inside = text.slice(begin, end);
  const padded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
  return [element("code", {}, padded ? inside.slice(1, -1) : inside), end + begin - at];
}

// A link or an image: where its label ends is kept for all that begin before.
function target(text, at, search) {
  const begin = at + (text[at] === "!" ? 2 : 1), kept = search.labels;
  if (text[begin - 1] !== "[") return [null, at + 1];
  if (!(kept.end >= begin)) {
    kept.end = from(LABEL_END, text, begin)?.index ?? text.length;
    kept.match = from(TARGET, text, kept.end);
  }
  if (!kept.match) return [null, begin];
  return [link(kept.match[1], text.slice(begin, kept.end) || kept.match[1]), kept.end + kept.match[0].length];
}

function link(address, text) {
  if (!/^https?:\/\//i.test(address)) return text;
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, text);
}
