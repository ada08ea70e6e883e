// Markdown to elements: paragraphs, headings, lists, quotes, tables, rules, code, links, emphasis, math.
// A model's text is foreign: links go to http and https alone, images are links, HTML stays text.

import { button, element } from "./dom.js";
import { formula } from "./math.js";

export function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|$)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITERS = /^ *\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$/;
const DEEPEST = 12; // nested lists and quotes

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
  if (heading) return [element(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2])), at + 1];
  if (RULE.test(line)) return [element("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) {
    const end = until(lines, at, (one) => !one.trim());
    const inside = lines.slice(at, end).map((one) => one.replace(QUOTE, ""));
    return [element("blockquote", {}, blocks(inside, depth + 1)), end];
  }
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && DELIMITERS.test(lines[at + 1] ?? "")) return table(lines, at);
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

// [pattern, what it becomes]; the first that fits at a place counts, and code and math come before emphasis.
const INLINE = [
  [/(`+)([^`](?:.*?[^`])?)\1(?!`)/s, (m) => element("code", {}, m[2].replace(/^ (.*\S.*) $/s, "$1"))],
  [/\\\((.+?)\\\)/s, (m) => formula(m[1], false)],
  [/\$(?![\s\d])((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/, (m) => formula(m[1], false)],
  [/\\([!-/:-@[-`{-~])/, (m) => m[1]],
  [/!?\[([^\]\n]*)\]\(\s*<?([^\s)>]+)>?(?:\s+"[^"]*")?\s*\)/, (m) => link(m[2], m[1] || m[2])],
  [/\bhttps?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?]/, (m) => link(m[0], m[0])],
  [/\*\*(?=\S)(.+?)(?<=\S)\*\*/s, (m) => element("strong", {}, inline(m[1]))],
  [/(?<!\w)__(?=\S)(.+?)(?<=\S)__(?!\w)/s, (m) => element("strong", {}, inline(m[1]))],
  [/\*(?=[^\s*])(.+?)(?<=[^\s*])\*/s, (m) => element("em", {}, inline(m[1]))],
  [/(?<!\w)_(?=[^\s_])(.+?)(?<=[^\s_])_(?!\w)/s, (m) => element("em", {}, inline(m[1]))],
  [/~~(?=\S)(.+?)(?<=\S)~~/s, (m) => element("del", {}, inline(m[1]))],
  [/ {2,}\n/, () => element("br")],
];

function inline(text) {
  const found = [];
  while (text) {
    let best = null;
    for (const [pattern, becomes] of INLINE) {
      const match = pattern.exec(text);
      if (match && (!best || match.index < best[0].index)) best = [match, becomes];
    }
    if (!best) break;
    const [match, becomes] = best;
    found.push(text.slice(0, match.index), becomes(match));
    text = text.slice(match.index + match[0].length);
  }
  return [...found, text].flat();
}

function link(address, text) {
  if (!/^https?:\/\//i.test(address)) return text;
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, text);
}
