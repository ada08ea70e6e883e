// The engine view: what each step was to each sequence, who holds which blocks, who waits for what.

import { button, byId, element, saveFile } from "./dom.js";
import { get, getFile } from "./server.js";
import { drawTimeline } from "./timeline.js";

const EVERY_MS = 400;
const SECONDS = 12; // of the timeline
const WAITS = {
  rows: "room in the step", slot: "a slot", blocks: "free blocks", store: "blocks from disk", prefix: "another one to compute its beginning",
  source: "its source text", preemption: "a sequence that lost its blocks", turn: "its turn",
};

export class EngineView {
  constructor(root) {
    this.root = root;
    this.command = element("code");
    this.model = "MODEL";
    this.steps = [];
    this.next = 0;
    this.watching = 0;
    this.paused = false;
    document.addEventListener("visibilitychange", () => !document.hidden && this.watching && this.poll(this.watching));
  }

  // The file of the model that is served.
  set model(name) {
    this.command.textContent = `graphml profile ${quoted(name)} --sequences 8 --trace steps.json`;
  }

  watch(on) {
    this.watching = on ? this.watching + 1 || 1 : 0;
    if (!on) return;
    if (!this.canvas) this.build();
    this.poll(this.watching);
  }

  build() {
    this.tiles = element("dl", { class: "tiles" });
    this.canvas = element("canvas", { class: "timeline", role: "img" });
    this.sequences = element("tbody");
    this.blocks = element("div", { class: "blocks", role: "img" });
    this.blocksText = element("p", { class: "dim" });
    this.wrong = element("p", { class: "error", role: "alert" });
    this.none = element("p", { class: "dim" }, "No steps to show: they are recorded from a question in the chat on, and while this view is open.");
    const pause = button("Pause", () => { this.paused = !this.paused; pause.textContent = this.paused ? "Go on" : "Pause"; pause.setAttribute("aria-pressed", String(this.paused)); });
    const heads = ["sequence", "state", "prompt", "cached", "computed", "generated", "blocks", "waits for"];
    this.root.append(
      this.wrong,
      this.tiles,
      element("div", { class: "row" }, element("h2", {}, `Steps of the last ${SECONDS} s`), pause, save("Save as a trace (Perfetto)", "engine/trace", "engine-trace.json"),
        save("Save the model's graph (viewer)", "engine/graph", "graph.html")),
      element("p", { class: "legend dim" }, mark("prompt"), "rows of a prompt", mark("token"), "a token", mark("found"), "found computed", mark("wait"), "waits", mark("rows"), "rows of each step, above"),
      this.none, element("div", { class: "scroll" }, this.canvas),
      element("h2", {}, "Sequences"),
      element("div", { class: "wide" }, element("table", {}, element("thead", {}, element("tr", {}, heads.map((one) => element("th", { scope: "col" }, one)))), this.sequences)),
      element("h2", {}, "Blocks of keys and values"), this.blocksText, this.blocks,
      element("p", { class: "dim" }, "Steps of eight sequences as a file, and the time of each node of a step, in the folder of the model's file: ", this.command),
    );
  }

  async poll(turn) {
    if (turn !== this.watching || document.hidden || this.polling) return;
    this.polling = true;
    try {
      const state = await get(`engine/state?after=${this.next}`);
      this.wrong.textContent = "";
      if (!this.paused) this.take(state);
    } catch (error) {
      this.wrong.textContent = error.message;
    }
    this.polling = false;
    setTimeout(() => this.poll(turn), EVERY_MS);
  }

  take(state) {
    const begun = state.steps.length && state.steps[0].number < this.next; // another engine, or a new recording
    this.steps = [...(begun ? [] : this.steps), ...state.steps];
    if (this.steps.length) this.next = this.steps.at(-1).number + 1;
    const latest = this.steps.at(-1)?.end_s ?? state.now_s;
    this.steps = this.steps.filter((step) => step.end_s > latest - SECONDS);
    this.drawTiles(state);
    this.none.hidden = this.steps.length > 0;
    drawTimeline(this.canvas, this.steps, SECONDS);
    this.drawSequences(state.sequences);
    this.drawBlocks(state);
  }

  drawTiles({ stats, now_s: now }) {
    const recent = this.steps.filter((step) => step.end_s > now - 2);
    const span = recent.length ? Math.max(0.05, recent.at(-1).end_s - recent[0].begin_s) : 1;
    const rows = (generates) => recent.flatMap((step) => step.rows).reduce((sum, one) => sum + (one.generates === generates ? one.count : 0), 0) / span;
    const facts = {
      running: stats.running, waiting: stats.waiting, "tokens a second": Math.round(rows(true)), "prompt rows a second": Math.round(rows(false)),
      "a step, median": `${(1000 * stats.step_p50_s).toFixed(1)} ms`, "rows a step": stats.rows_per_step.toFixed(1),
      "blocks in use": `${stats.blocks_used} of ${stats.blocks_used + stats.blocks_free}`, "prompt tokens found": stats.hit_tokens, preempted: stats.n_preempted,
      ...(stats.n_drafted ? { "drafts accepted": `${stats.n_accepted} of ${stats.n_drafted}` } : {}),
    };
    this.tiles.replaceChildren(...Object.entries(facts).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
  }

  drawSequences(sequences) {
    const cell = (value) => element("td", { class: typeof value === "number" ? "number" : null }, String(value));
    const rows = sequences.map((one) => element("tr", {},
      [element("th", { scope: "row" }, element("span", { class: "swatch", "--tint": tint(one.id) }), String(one.id)), cell(one.status), cell(one.n_prompt), cell(Math.max(0, one.n_cached)),
        cell(one.n_computed), cell(one.n_generated), cell(one.blocks.length), cell(WAITS[one.waits_for] ?? one.waits_for)]));
    this.sequences.replaceChildren(...(rows.length ? rows : [element("tr", {}, element("td", { colspan: 8, class: "dim" }, "None now."))]));
  }

  drawBlocks({ blocks, sequences }) {
    const holders = new Map();
    for (const one of sequences) for (const block of one.blocks) holders.set(block, [...(holders.get(block) ?? []), one.id]);
    const kept = new Set(blocks.kept);
    const shared = [...holders.values()].filter((ids) => ids.length > 1).length;
    const group = Math.ceil(blocks.count / 1024), cells = []; // thousands of blocks are drawn as groups
    const drawn = group > 1 ? ` A square is ${group} blocks.` : "";
    const text = `${blocks.count} blocks of ${blocks.size} tokens: ${holders.size} held, ${shared} of them shared; ${kept.size} free ones keep what later prompts may find.${drawn}`;
    this.blocksText.textContent = text;
    this.blocks.setAttribute("aria-label", text);
    for (let first = 0; first < blocks.count; first += group) cells.push(blockCell(first, Math.min(group, blocks.count - first), holders, kept));
    this.blocks.replaceChildren(...cells);
  }
}

function blockCell(first, count, holders, kept) {
  const numbers = Array.from({ length: count }, (_, i) => first + i);
  const ids = [...new Set(numbers.flatMap((one) => holders.get(one) ?? []))];
  const of = ids.length ? `held by ${ids.map((id) => `sequence ${id}`).join(", ")}` : numbers.some((one) => kept.has(one)) ? "free, content kept" : "free";
  const parts = ids.slice(0, 6).map((id, i, all) => `${tint(id)} ${(100 * i) / all.length}% ${(100 * (i + 1)) / all.length}%`);
  const kind = ids.length > 1 ? "block shared" : ids.length ? "block held" : numbers.some((one) => kept.has(one)) ? "block kept" : "block";
  return element("span", { class: kind, title: `block ${first}${count > 1 ? ` to ${first + count - 1}` : ""}: ${of}`, "--holders": parts.length ? `linear-gradient(90deg, ${parts.join(", ")})` : null });
}

// Neighbouring numbers get colours far apart (the golden angle).
export const tint = (id) => `hsl(${Math.round(id * 137.508) % 360} 62% 52%)`;

// A name as a shell reads it.
const quoted = (name) => (/^[\w.\/-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`);

const mark = (kind) => element("span", { class: `mark ${kind}` });

function save(text, path, name) {
  return button(text, async (event) => {
    event.target.disabled = true;
    try {
      saveFile(await getFile(path), name);
    } catch (error) {
      byId("engine").querySelector(".error").textContent = error.message;
    }
    event.target.disabled = false;
  });
}
