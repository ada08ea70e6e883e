// The drawer of settings: how tokens are sampled, what the answer must follow, tools. Names are llama-server's.

import { button, byId, element } from "./dom.js";

// [name in a request, label, what it does, attributes]; an empty field leaves the server's own value.
const NUMBERS = [
  ["temperature", "Temperature", "0: always the most likely token", { min: 0, max: 5, step: 0.05 }],
  ["top_k", "Top k", "only the k most likely; 0: all", { min: 0, step: 1 }],
  ["top_p", "Top p", "the most likely that have this probability together", { min: 0, max: 1, step: 0.01 }],
  ["min_p", "Min p", "at least this share of the most likely one's", { min: 0, max: 1, step: 0.01 }],
  ["typical_p", "Typical p", "those of usual surprise", { min: 0, max: 1, step: 0.01 }],
  ["top_n_sigma", "Top n sigma", "within n deviations of the best logit; -1: off", { min: -1, step: 0.1 }],
  ["xtc_probability", "XTC probability", "how often the best ones are left out", { min: 0, max: 1, step: 0.01 }],
  ["xtc_threshold", "XTC threshold", "which those are", { min: 0, max: 1, step: 0.01 }],
  ["repeat_penalty", "Repeat penalty", "1: none", { min: 0, step: 0.05 }],
  ["presence_penalty", "Presence penalty", "", { step: 0.05 }],
  ["frequency_penalty", "Frequency penalty", "", { step: 0.05 }],
  ["dry_multiplier", "DRY multiplier", "against repeated passages; 0: off", { min: 0, step: 0.05 }],
  ["seed", "Seed", "the same seed, the same answer", { step: 1 }],
  ["max_tokens", "Max tokens", "of an answer", { min: 1, step: 1 }],
];
// Defaults that are no numbers to a reader.
const IN_WORDS = { "seed 4294967295": "random", "max_tokens -1": "no limit" };

const NOT_DETERMINISTIC = "At temperature 0 an answer may still differ from the last one: sums are added up in another order beside other requests. A server with --deterministic does not.";

export class Settings {
  constructor(store, defaults, changed) {
    this.store = store;
    this.defaults = defaults; // of the server, shown in empty fields
    this.changed = changed;
    this.mcpTools = []; // of MCP servers, in OpenAI's form; the server runs them
    this.deterministic = null; // whether answers have the same bits in any company, once the server has said so
    this.says = {}; // by name: what writes words beside a setting
  }

  get values() {
    return this.store.settings;
  }

  draw() {
    byId("settings").replaceChildren(
      element("div", { class: "drawer-head" }, element("h2", {}, "Settings"), button("×", () => toggleSettings(false), { class: "quiet", "aria-label": "Close the settings" })),
      this.area("system", "System message", 3),
      element("h3", {}, "Sampling"),
      element("div", { class: "fields" }, NUMBERS.map((one) => this.number(...one))),
      ...(this.deterministic === false ? [element("p", { class: "dim", id: "same-bits" }, NOT_DETERMINISTIC)] : []),
      this.area("stop", "Stop strings, one a line", 2),
      element("h3", {}, "What an answer must follow"),
      this.area("schema", "JSON schema", 4, checkSchema),
      this.area("grammar", "Grammar (GBNF)", 3),
      element("h3", {}, "Tools"),
      this.check("use_tools", "Offer these functions to the model"),
      this.area("tools", "A JSON list of OpenAI's tools", 4, checkTools),
      element("p", { class: "dim" }, "The page runs none: it shows a call and asks for its result."),
      ...this.mcp(),
      element("h3", {}, "Show"),
      this.check("show_tokens", "Tokens by probability"),
      button("Back to the server's settings", () => this.clear()),
    );
  }

  // The tools of MCP servers, where there are some.
  mcp() {
    if (!this.mcpTools.length) return [];
    const row = ({ function: { name, description } }) => element("li", {}, element("code", {}, name), ` ${description}`);
    return [
      this.check("use_mcp", "Offer the tools of MCP servers; each call asks you"),
      element("ul", { id: "mcp-tools", class: "dim" }, this.mcpTools.map(row)),
    ];
  }

  // Whether the server runs a tool of this name.
  runs(name) {
    return this.mcpTools.some((tool) => tool.function.name === name);
  }

  number(name, label, does, attributes) {
    const input = element("input", { type: "number", id: `set-${name}`, placeholder: IN_WORDS[`${name} ${this.defaults[name]}`] ?? this.defaults[name] ?? "", "aria-describedby": `wrong-${name}`, ...attributes });
    return this.field(name, input, () => input.validity.badInput || input.value !== "" ? numberOf(input, attributes) : undefined, element("label", { title: does }, element("span", {}, label), input));
  }

  area(name, label, rows, check = () => {}) {
    const input = element("textarea", { rows, id: `set-${name}`, spellcheck: "false", "aria-describedby": `wrong-${name}` });
    const read = () => {
      if (!input.value.trim()) return undefined;
      check(input.value);
      return input.value;
    };
    return this.field(name, input, read, element("label", { class: "area" }, element("span", {}, label), input));
  }

  // A field whose value is read when it changes; what is wrong with it is said beside it, and it is not used.
  field(name, input, read, label) {
    const wrong = element("p", { class: "error", role: "alert", id: `wrong-${name}` });
    const say = (words) => {
      wrong.textContent = words;
      input.classList.toggle("wrong", Boolean(words));
      input.setAttribute("aria-invalid", String(Boolean(words)));
    };
    input.value = this.values[name] ?? "";
    input.addEventListener("change", () => {
      try {
        this.set(name, read());
        say("");
      } catch (error) {
        this.set(name, undefined);
        say(`not used: ${error.message}`);
      }
    });
    this.says[name] = say;
    label.append(wrong);
    return label;
  }

  // What the server refuses is said beside the setting that it came from.
  refuse({ field, message }) {
    const name = { response_format: "schema", json_schema: "schema", max_completion_tokens: "max_tokens" }[field] ?? field;
    if (this.values[name] !== undefined) this.says[name]?.(`the server: ${message}`);
  }

  check(name, label) {
    const input = element("input", { type: "checkbox", id: `set-${name}` });
    input.checked = Boolean(this.values[name]);
    input.addEventListener("change", () => this.set(name, input.checked || undefined));
    return element("label", { class: "check" }, input, label);
  }

  set(name, value) {
    if (value === undefined) delete this.values[name];
    else this.values[name] = value;
    this.store.saveSettings();
    this.changed(name);
  }

  clear() {
    for (const name of Object.keys(this.values)) delete this.values[name];
    this.store.saveSettings();
    this.draw();
    this.changed("");
  }

  // What goes into a request besides its messages.
  request() {
    const found = {};
    for (const [name] of NUMBERS) if (this.values[name] !== undefined) found[name] = this.values[name];
    if (this.values.stop) found.stop = this.values.stop.split("\n").filter(Boolean);
    if (this.values.schema) found.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(this.values.schema) } };
    else if (this.values.grammar) found.grammar = this.values.grammar;
    const own = this.values.use_tools && this.values.tools ? JSON.parse(this.values.tools) : [];
    const tools = [...own, ...(this.values.use_mcp ? this.mcpTools : [])];
    if (tools.length) found.tools = tools;
    return found;
  }
}

// The number of a field; an Error in words for one that is none, or out of its range.
function numberOf(input, { min, max, step }) {
  const range = min === undefined ? "" : max === undefined ? ` of ${min} or more` : ` from ${min} to ${max}`;
  const value = input.valueAsNumber, whole = step === 1;
  const ok = Number.isFinite(value) && !(value < min) && !(value > max) && (!whole || Number.isInteger(value));
  if (!ok) throw new Error(`wanted a ${whole ? "whole " : ""}number${range}`);
  return value;
}

function checkSchema(text) {
  const schema = JSON.parse(text);
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) throw new Error("wanted a JSON schema as an object");
}

function checkTools(text) {
  const tools = JSON.parse(text);
  if (!Array.isArray(tools)) throw new Error("wanted a list of tools");
  tools.forEach((tool, i) => {
    if (typeof tool?.function?.name !== "string") throw new Error(`tool ${i + 1}: wanted {"type": "function", "function": {"name": ...}}`);
  });
}

export function toggleSettings(open = byId("settings").hidden) {
  byId("settings").hidden = !open;
  byId("show-settings").setAttribute("aria-expanded", String(open));
  (open ? byId("set-system") : byId("show-settings")).focus();
}
