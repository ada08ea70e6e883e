// A part of TeX's math to MathML, which browsers draw themselves. What is not known is shown as it was written.

import { element, math } from "./dom.js";

const SYMBOLS = {
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ϵ", varepsilon: "ε", zeta: "ζ", eta: "η", theta: "θ", vartheta: "ϑ",
  iota: "ι", kappa: "κ", lambda: "λ", mu: "μ", nu: "ν", xi: "ξ", pi: "π", rho: "ρ", sigma: "σ", tau: "τ", upsilon: "υ",
  phi: "ϕ", varphi: "φ", chi: "χ", psi: "ψ", omega: "ω", Gamma: "Γ", Delta: "Δ", Theta: "Θ", Lambda: "Λ", Xi: "Ξ", Pi: "Π",
  Sigma: "Σ", Phi: "Φ", Psi: "Ψ", Omega: "Ω", infty: "∞", partial: "∂", nabla: "∇", ell: "ℓ", hbar: "ℏ", emptyset: "∅", angle: "∠",
  degree: "°", prime: "′", aleph: "ℵ", Re: "ℜ", Im: "ℑ", top: "⊤", bot: "⊥",
};
const OPERATORS = {
  cdot: "⋅", times: "×", div: "÷", pm: "±", mp: "∓", ast: "∗", star: "⋆", circ: "∘", bullet: "∙", oplus: "⊕", otimes: "⊗", odot: "⊙",
  le: "≤", leq: "≤", ge: "≥", geq: "≥", ne: "≠", neq: "≠", approx: "≈", equiv: "≡", sim: "∼", simeq: "≃", cong: "≅", propto: "∝",
  ll: "≪", gg: "≫", in: "∈", notin: "∉", ni: "∋", subset: "⊂", subseteq: "⊆", supset: "⊃", supseteq: "⊇", cup: "∪", cap: "∩",
  setminus: "∖", forall: "∀", exists: "∃", neg: "¬", land: "∧", wedge: "∧", lor: "∨", vee: "∨", to: "→", rightarrow: "→",
  leftarrow: "←", gets: "←", leftrightarrow: "↔", Rightarrow: "⇒", implies: "⟹", Leftarrow: "⇐", iff: "⟺", Leftrightarrow: "⇔",
  mapsto: "↦", uparrow: "↑", downarrow: "↓", mid: "∣", parallel: "∥", perp: "⊥", ldots: "…", dots: "…", cdots: "⋯", vdots: "⋮",
  ddots: "⋱", colon: ":", langle: "⟨", rangle: "⟩", lfloor: "⌊", rfloor: "⌋", lceil: "⌈", rceil: "⌉", "{": "{", "}": "}", "|": "‖",
  lvert: "|", rvert: "|", lVert: "‖", rVert: "‖", "%": "%", "#": "#", "&": "&", $: "$", _: "_",
};
const LARGE = { sum: "∑", prod: "∏", int: "∫", iint: "∬", oint: "∮", bigcup: "⋃", bigcap: "⋂", coprod: "∐" };
const FUNCTIONS = "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan exp log ln lg det dim ker deg gcd arg Pr".split(" ");
const LIMITS = "lim max min sup inf argmax argmin limsup liminf".split(" ");
const ACCENTS = { hat: "^", widehat: "^", bar: "¯", overline: "¯", tilde: "~", widetilde: "~", vec: "→", dot: "˙", ddot: "¨" };
const SPACES = { ",": "0.17em", ":": "0.22em", ";": "0.28em", " ": "0.3em", "!": "0", quad: "1em", qquad: "2em" };
// First capital of an alphabet in Unicode, and its letters that stand elsewhere.
const VARIANTS = {
  mathbf: [0x1d400, {}], boldsymbol: [0x1d400, {}],
  mathbb: [0x1d538, { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }],
  mathcal: [0x1d49c, { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ" }],
  mathfrak: [0x1d504, { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" }],
};
const TEXTS = ["text", "textrm", "textbf", "textit", "mathrm", "operatorname", "mbox", "mathsf", "mathtt"];
const FENCES = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], vmatrix: ["|", "|"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""] };
const DEEPEST = 40;

// The MathML of a formula, or its text where a part of it is unknown.
export function formula(text, display) {
  try {
    const reader = new Reader(text);
    const row = reader.row(() => reader.at >= reader.tokens.length, 0);
    return math("math", { display: display ? "block" : "inline" }, row);
  } catch {
    return element("code", { class: "tex" }, text);
  }
}

function inAlphabet(node, first, elsewhere) {
  for (const one of node.localName === "mi" ? [node] : node.querySelectorAll("mi"))
    one.textContent = one.textContent.replace(/^[A-Z]$/, (letter) => elsewhere[letter] ?? String.fromCodePoint(first + letter.charCodeAt(0) - 65));
  return node;
}

class Reader {
  constructor(text) {
    this.tokens = text.match(/\\[a-zA-Z]+\*?|\\[\s\S]|\d+(?:[.,]\d+)*|\s+|[\s\S]/gu) ?? [];
    this.at = 0;
  }

  peek() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at += 1;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new Error("an end too early");
    this.at += 1;
    return token;
  }

  row(ends, depth) {
    if (depth > DEEPEST) throw new Error("nested too deeply");
    const parts = [];
    while (this.peek() !== undefined && !ends(this.peek())) parts.push(this.scripted(depth));
    return math("mrow", {}, parts);
  }

  // An atom with what stands below and above it.
  scripted(depth) {
    const token = this.peek();
    const base = this.atom(depth);
    const under = LARGE[token?.slice(1)] || LIMITS.includes(token?.slice(1));
    let below = null, above = null;
    for (;;) {
      const mark = this.peek();
      if (mark === "_" && !below) below = (this.next(), this.argument(depth));
      else if (mark === "^" && !above) above = (this.next(), this.argument(depth));
      else if (mark === "'" && !above) above = this.primes();
      else break;
    }
    const names = under ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (below && above) return math(names[2], {}, base, below, above);
    if (below) return math(names[0], {}, base, below);
    return above ? math(names[1], {}, base, above) : base;
  }

  primes() {
    let text = "";
    while (this.peek() === "'") { text += "′"; this.at += 1; }
    return math("mo", {}, text);
  }

  argument(depth) {
    if (this.peek() !== "{") return this.atom(depth + 1);
    this.next();
    const row = this.row((token) => token === "}", depth + 1);
    this.next();
    return row;
  }

  // The letters of a group as they are.
  raw() {
    if (this.next() !== "{") throw new Error("a group is missing");
    let text = "", open = 1;
    for (;;) {
      const token = this.tokens[this.at++];
      if (token === undefined) throw new Error("a group without an end");
      open += (token === "{") - (token === "}");
      if (!open) return text;
      text += token;
    }
  }

  atom(depth) {
    const token = this.next();
    if (token === "{") { this.at -= 1; return this.argument(depth); }
    if (token === "}" || token === "&") throw new Error("a mark too many");
    if (token.startsWith("\\")) return this.command(token.slice(1), depth);
    if (/^\d/.test(token)) return math("mn", {}, token);
    if (/^\p{L}/u.test(token)) return math("mi", {}, token);
    return math("mo", "()[]|/".includes(token) ? { stretchy: "false" } : {}, token === "-" ? "−" : token);
  }

  command(name, depth) {
    if (SYMBOLS[name]) return math("mi", {}, SYMBOLS[name]);
    if (OPERATORS[name]) return math("mo", { stretchy: "false" }, OPERATORS[name]);
    if (LARGE[name]) return math("mo", { movablelimits: "true" }, LARGE[name]);
    if (FUNCTIONS.includes(name) || LIMITS.includes(name)) return math("mi", {}, name);
    if (SPACES[name]) return math("mspace", { width: SPACES[name] });
    if (/^[dt]?frac$/.test(name)) return math("mfrac", {}, this.argument(depth), this.argument(depth));
    if (name === "binom") return this.fenced(["(", ")"], math("mfrac", { linethickness: "0" }, this.argument(depth), this.argument(depth)));
    if (name === "sqrt") return this.root(depth);
    if (ACCENTS[name]) return math("mover", { accent: "true" }, this.argument(depth), math("mo", {}, ACCENTS[name]));
    if (name === "underline") return math("munder", {}, this.argument(depth), math("mo", {}, "_"));
    if (name === "boxed") return this.argument(depth);
    if (VARIANTS[name]) return inAlphabet(this.argument(depth), ...VARIANTS[name]);
    if (TEXTS.includes(name)) return math("mtext", {}, this.raw().replaceAll(" ", "\u00a0"));
    if (name === "left") return this.leftRight(depth);
    if (/^(big|Big|bigg|Bigg)[lr]?$/.test(name) || name === "displaystyle" || name === "limits") return math("mrow");
    if (name === "begin") return this.environment(depth);
    throw new Error("not known");
  }

  root(depth) {
    if (this.peek() !== "[") return math("msqrt", {}, this.argument(depth));
    this.next();
    const index = this.row((token) => token === "]", depth + 1);
    this.next();
    return math("mroot", {}, this.argument(depth), index);
  }

  fence() {
    const token = this.next();
    return token === "." ? "" : token.startsWith("\\") ? OPERATORS[token.slice(1)] ?? "" : token;
  }

  fenced([open, close], inside) {
    const mark = (text) => (text ? math("mo", { stretchy: "true", fence: "true" }, text) : null);
    return math("mrow", {}, mark(open), inside, mark(close));
  }

  leftRight(depth) {
    const open = this.fence();
    const inside = this.row((token) => token === "\\right", depth + 1);
    this.next();
    return this.fenced([open, this.fence()], inside);
  }

  environment(depth) {
    const name = this.raw();
    const fences = FENCES[name];
    if (!fences) throw new Error("an environment that is not known");
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(math("mtd", {}, this.row((token) => ["&", "\\\\", "\\end"].includes(token), depth + 1)));
      const mark = this.next();
      if (mark === "\\\\") rows.push([]);
      if (mark === "\\end") break;
    }
    this.raw();
    return this.fenced(fences, math("mtable", {}, rows.map((cells) => math("mtr", {}, cells))));
  }
}
