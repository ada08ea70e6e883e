// The token view: an answer's tokens coloured by probability, and what else might have stood in each place.

import { byId, element } from "./dom.js";

// A token of an answer from a chunk's log-probabilities. ms: since the chunk before it.
export function tokenOf(entry, ms) {
  const top = (entry.top_logprobs ?? []).map((one) => [one.token, one.logprob]);
  return { text: entry.token, logprob: entry.logprob, top, ms, entropy: entry.entropy, rank: entry.rank, drafted: Boolean(entry.drafted) };
}

export function tokenView(tokens) {
  let before = "";
  const spans = tokens.map((token, i) => {
    before += token.text;
    return tokenSpan(token, i === 0 ? 0 : -1, isCode(before));
  });
  const view = element("div", { class: "tokens", role: "group", "aria-label": "Tokens; arrow keys go from one to the next" }, spans);
  view.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step && spans[spans.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return view;
}

// Whether a text ends within a block of code, whose spaces mean something.
const isCode = (text) => (text.match(/^ {0,3}```/gm) ?? []).length % 2 === 1;

const probability = (logprob) => Math.exp(Math.min(0, logprob));
const percent = (logprob) => {
  const share = 100 * probability(logprob);
  return share >= 0.1 ? `${share.toFixed(1)} %` : share > 0 ? `${share.toPrecision(1)} %` : "0 %";
};

export function visible(text) {
  return text === "" ? "∅" : text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ | $/g, "␣");
}

function tokenSpan(token, tabIndex, code) {
  // -ln p, from 0 to 5 nats, is how surprising it was.
  const surprise = Math.min(1, Math.max(0, -token.logprob) / 5);
  const span = element("span", { class: `token${token.drafted ? " drafted" : ""}${code ? " code" : ""}`, tabindex: tabIndex, "--surprise": `${Math.round(100 * surprise)}%` }, token.text);
  const show = () => showAlternatives(span, token);
  span.addEventListener("mouseenter", show);
  span.addEventListener("focus", show);
  span.addEventListener("mouseleave", (event) => byId("alternatives").contains(event.relatedTarget) || hideAlternatives());
  span.addEventListener("blur", hideAlternatives);
  return span;
}

function showAlternatives(span, token) {
  const box = byId("alternatives");
  const rows = token.top.map(([text, logprob]) => element("tr", { class: text === token.text ? "chosen" : null },
    element("td", { class: "text" }, visible(text)), element("td", { class: "number" }, percent(logprob)),
    element("td", {}, element("span", { class: "bar", "--share": `${Math.round(100 * probability(logprob))}%` }))));
  const facts = [
    `${percent(token.logprob)} · ${token.logprob.toFixed(3)} nats`,
    token.rank ? `rank ${token.rank}` : null,
    token.entropy !== undefined && token.entropy !== null ? `entropy ${token.entropy.toFixed(2)} nats` : null,
    token.ms !== undefined ? `after ${token.ms < 10 ? token.ms.toFixed(1) : Math.round(token.ms)} ms` : null,
    token.drafted ? "from a draft" : null,
  ];
  box.replaceChildren(element("p", {}, element("b", { class: "text" }, visible(token.text)), " ", facts.filter(Boolean).join(" · ")), element("table", {}, element("tbody", {}, rows)));
  box.hidden = false;
  const at = span.getClientRects()[0], size = box.getBoundingClientRect();
  const left = Math.max(4, Math.min(at.left, innerWidth - size.width - 4));
  const below = at.bottom + 6 + size.height < innerHeight;
  box.style.setProperty("left", `${left}px`);
  box.style.setProperty("top", `${below ? at.bottom + 6 : Math.max(4, at.top - size.height - 6)}px`);
}

export function hideAlternatives() {
  byId("alternatives").hidden = true;
}

// A prompt's tokens; the first nCached were found computed and are shaded; undefined: unknown how many.
export function promptView(pieces, nCached) {
  const text = (all) => all.map((piece) => piece.piece).map((piece) => (typeof piece === "string" ? piece : "�")).join("");
  return element("details", { class: "prompt" },
    element("summary", {}, `Prompt: ${pieces.length} tokens${nCached === undefined ? "" : `, ${nCached} of them from the cache`}`),
    element("pre", { tabindex: "0" }, element("span", { class: "cached", title: "found computed" }, text(pieces.slice(0, nCached ?? 0))), text(pieces.slice(nCached ?? 0))));
}

export function legend(tokens) {
  return element("p", { class: "token-legend dim" }, "probability ", element("span", { class: "ramp" }), " 1 to e⁻⁵",
    ...(tokens.some((one) => one.drafted) ? [element("span", { class: "token drafted", "--surprise": "0%" }, "draft"), "came from a draft"] : []));
}
