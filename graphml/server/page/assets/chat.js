// The chat: sends conversations, draws answers while they come, and keeps what may be done with each message.

import { conversationFiles } from "./conversation_files.js";
import { byId, button, element, tell } from "./dom.js";
import { Files, withFiles } from "./files.js";
import { cachedOf, messageElement } from "./messages.js";
import { endStream, get, post, resumed, ServerError, stream } from "./server.js";
import { newId } from "./store.js";
import { hideAlternatives, tokenOf } from "./tokens.js";

const TOP = 6; // alternatives of a token
const EXAMPLES = ["Explain rainbows in two sentences.", "Write a Python function that counts words."];
const TRIES = 3, AGAIN_MS = 1000; // of a connection that breaks
const TOUCH = matchMedia("(pointer: coarse)"); // its keyboards have no Shift+Enter: Enter begins a line

// A title is plain: marks of Markdown are left out.
function titleOf(text) {
  return (text.replace(/[#*`>~|]+/g, " ").replace(/\s+/g, " ").trim() || text).slice(0, 60);
}

export class Chat {
  constructor(store, settings) {
    Object.assign(this, { store, settings, model: "", hasTemplate: true, running: null, edited: null, frame: 0, files: new Files() });
    byId("compose").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    byId("stop").addEventListener("click", () => this.stop());
    const input = byId("message");
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || TOUCH.matches) return;
      event.preventDefault();
      this.send();
    });
    input.addEventListener("input", () => grow(input));
    growWithWidth(input);
    const hint = () => { input.placeholder = TOUCH.matches ? "Message" : "Message (Enter sends, Shift+Enter begins a line)"; };
    TOUCH.addEventListener("change", hint);
    hint();
    addEventListener("pagehide", () => this.running && store.save());
    byId("messages").addEventListener("scroll", hideAlternatives);
  }

  get messages() {
    return this.store.current.messages;
  }

  // Let a person write at once; on a phone the keyboard would cover half of the page.
  focus() {
    if (!TOUCH.matches) byId("message").focus();
  }

  draw() {
    const busy = this.running?.conversation === this.store.current;
    const options = (i) => ({ tokens: this.settings.values.show_tokens, last: i === this.messages.length - 1, busy: busy && i === this.messages.length - 1, behind: this.messages.slice(i + 1) });
    byId("messages").replaceChildren(...this.messages.map((one, i) => messageElement(one, i, this, options(i))));
    if (!this.messages.length) byId("messages").append(this.empty());
    byId("messages").children[this.messages.indexOf(this.edited)]?.classList.add("edited");
    byId("send").hidden = Boolean(this.running);
    byId("stop").hidden = !this.running;
    this.drawList();
  }

  // What may be asked, and that tokens can be shown.
  empty() {
    const shown = Boolean(this.settings.values.show_tokens);
    return element("div", { class: "empty dim" },
      element("p", {}, `${this.model || "The model"} answers here. What is written stays in this browser and on this server.`),
      this.hasTemplate ? null : element("p", {}, "It has no chat template: messages are written as ChatML, which it may not know."),
      ...EXAMPLES.map((text) => element("p", {}, button(text, () => this.propose(text), { class: "example" }))),
      button(`${shown ? "☑" : "☐"} Tokens by probability`, () => this.showTokens(), { class: "switch", "aria-pressed": String(shown), title: "colours each token of an answer, and shows what else might have stood there" }));
  }

  showTokens() {
    this.settings.set("show_tokens", !this.settings.values.show_tokens || undefined);
    this.settings.draw();
    this.focus();
  }

  // An example goes into the box, where it can be changed before it is sent.
  propose(text) {
    byId("message").value = text;
    byId("message").dispatchEvent(new Event("input"));
    this.focus();
  }

  // Only the message that is being written is drawn again, at most once a frame.
  drawLast() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const box = byId("messages"), i = this.messages.length - 1;
      if (!this.running || this.running.conversation !== this.store.current || !box.lastElementChild) return;
      atEnd(box, () => box.lastElementChild.replaceWith(messageElement(this.messages[i], i, this, { tokens: this.settings.values.show_tokens, busy: true, last: true, behind: [] })));
    });
  }

  drawList() {
    const item = (one) => element("li", { class: one === this.store.current ? "current" : null },
      button(one.title || "New conversation", () => { this.store.open(one.id); document.body.classList.remove("list-open"); this.draw(); this.focus(); }, { "aria-current": one === this.store.current ? "true" : null }),
      button("×", () => { if (this.running?.conversation !== one) { this.store.remove(one.id); this.draw(); } }, { class: "quiet", "aria-label": `Delete ${one.title || "this conversation"}` }));
    byId("list").replaceChildren(
      button("New conversation", () => { if (this.messages.length) this.store.begin(); this.draw(); this.focus(); }, { class: "new" }),
      element("ul", {}, this.store.conversations.map(item)),
      conversationFiles(this.store, () => this.draw()));
  }

  send() {
    const input = byId("message"), text = input.value.trim();
    if (!(text || this.files.all.length) || this.running) return;
    input.value = "";
    grow(input);
    const edited = this.messages.indexOf(this.edited);
    if (edited >= 0) this.messages.length = edited;
    this.edited = null;
    const files = this.files.take();
    this.store.current.title ||= titleOf(text || files[0].name);
    this.messages.push({ role: "user", content: text, ...(files.length ? { files } : {}) });
    this.answer();
  }

  stop() {
    if (!this.running) return;
    this.running.abort.abort();
    if (!this.running.name) return; // a call of a tool
    endStream(this.running.name).catch(() => {}); // it has ended already, or its connection is the end of it
  }

  edit(index) {
    if (this.running) return;
    this.edited = this.messages[index]; // it and what follows stay until another text is sent
    this.draw();
    byId("message").value = this.edited.content;
    this.files.show(this.edited.files ?? []);
    byId("message").focus();
    grow(byId("message"));
    tell("Escape leaves the message as it was.");
  }

  leaveEdit() {
    this.edited = null;
    byId("message").value = "";
    this.files.show([]);
    grow(byId("message"));
    this.draw();
  }

  remove(index) {
    if (this.running) return;
    this.messages.splice(index, 1);
    this.store.save();
    this.draw();
  }

  regenerate(index) {
    if (this.running) return;
    this.messages.length = index;
    this.answer();
  }

  answerTool(index, call, result) {
    if (this.running) return;
    this.messages.push({ role: "tool", tool_call_id: call.id, content: result });
    const answered = new Set(this.messages.slice(index + 1).map((one) => one.tool_call_id));
    const missing = this.messages[index].tool_calls.some((one) => !answered.has(one.id));
    if (missing) this.draw();
    else this.answer();
  }

  runs(name) {
    return this.settings.runs(name);
  }

  // The server makes a call that the person has allowed; where the server refuses, the person may decide again.
  async callTool(index, call) {
    if (this.running) return;
    const conversation = this.store.current, message = this.messages[index], abort = new AbortController();
    this.running = { abort, conversation };
    delete message.error;
    this.draw();
    let result = null;
    try {
      const { name, arguments: written } = call.function;
      result = (await post("mcp/call", { name, arguments: JSON.parse(written || "{}") }, abort.signal)).content;
    } catch (error) {
      if (abort.signal.aborted) result = "Error: the user cancelled this call";
      else message.error = error.message;
    }
    this.running = null;
    this.store.open(conversation.id);
    if (result === null) this.draw();
    else this.answerTool(index, call, result);
  }

  sent() {
    const system = this.settings.values.system ? [{ role: "system", content: this.settings.values.system }] : [];
    return [...system, ...this.messages.map(({ role, content, files, tool_calls, tool_call_id }) => ({ role, content: withFiles(content, files), tool_calls, tool_call_id }))];
  }

  async answer() {
    const messages = this.sent();
    const message = { role: "assistant", content: "", stream: `page-${newId()}`, next: 0 };
    this.messages.push(message);
    const body = { messages, stream: true, stream_options: { include_usage: true }, timings_per_token: true, return_denoising: true, ...this.settings.request() };
    this.store.save(); // a page that is loaded anew reads the answer on
    get("engine/state?after=999999999999").catch(() => {}); // the engine view, opened later, has this answer's steps
    await this.follow(message, messages, (signal) => this.chunks(body, signal, message.stream));
  }

  // With probabilities, which may be looked at later, where the model has some: one that denoises has none.
  async *chunks(body, signal, name) {
    const scores = this.unscored ? {} : { logprobs: true, top_logprobs: TOP };
    try {
      yield* stream("v1/chat/completions", { ...body, ...scores }, signal, name);
    } catch (error) {
      if (this.unscored || !(error.field in scores)) throw error;
      this.unscored = true;
      yield* stream("v1/chat/completions", body, signal, name);
    }
  }

  // Read on what was being written when the page was left.
  async resume() {
    for (const conversation of this.store.conversations) {
      const message = conversation.messages.at(-1);
      if (!message?.stream || this.running) continue;
      this.store.open(conversation.id);
      this.messages.pop();
      const messages = this.sent();
      this.messages.push(message);
      await this.follow(message, messages, (signal) => resumed(message.stream, message.next, signal));
    }
  }

  // Draw an answer while its chunks come. messages: what it answers.
  async follow(message, messages, chunksOf) {
    const abort = new AbortController(), conversation = this.store.current;
    this.running = { abort, conversation, name: message.stream };
    this.draw();
    byId("messages").scrollTop = byId("messages").scrollHeight;
    try {
      let before = performance.now();
      for await (const chunk of readOn(message, chunksOf, abort.signal)) {
        const now = performance.now();
        this.take(message, chunk, now - before);
        before = now;
        this.drawLast();
      }
    } catch (error) {
      if (abort.signal.aborted) message.stopped = true;
      else message.error = error.status === 404 && !error.field ? "the rest of this answer is not kept any more" : error.message;
      this.settings.refuse(error);
    }
    this.running = null;
    delete message.stream;
    delete message.next;
    delete message.denoising;
    if (message.tokens && this.settings.values.show_tokens) await this.findPrompt(message, messages);
    this.store.save();
    if (conversation === this.store.current) atEnd(byId("messages"), () => this.draw());
    else this.draw();
    tell("The answer has ended.");
  }

  take(message, chunk, ms) {
    message.usage = chunk.usage ?? message.usage;
    message.timings = chunk.timings ?? message.timings;
    message.denoising = chunk.denoising ?? message.denoising;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    message.finish = choice.finish_reason ?? message.finish;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    message.content += content ?? "";
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
    for (const call of calls ?? []) addToCall((message.tool_calls ||= []), call);
    const entries = choice.logprobs?.content ?? [];
    if (entries.length) (message.tokens ||= []).push(...entries.map((one) => tokenOf(one, ms / entries.length)));
  }

  // What the model was given, so that the part from the cache can be shown; it matters to nobody if it cannot be had.
  async findPrompt(message, messages) {
    try {
      const { prompt } = await post("apply-template", { messages });
      const { tokens } = await post("tokenize", { content: prompt, with_pieces: true, add_special: true, parse_special: true });
      message.prompt = { pieces: tokens, n_cached: cachedOf(message) };
    } catch {
      delete message.prompt;
    }
  }
}

// The chunks of an answer. Where the connection breaks, as it does while the page is left, another one reads on.
async function* readOn(message, chunksOf, signal) {
  for (let tries = 0; ; tries += 1) {
    try {
      for await (const chunk of chunksOf(signal)) {
        tries = 0;
        message.next += 1;
        yield chunk;
      }
      return;
    } catch (error) {
      if (signal.aborted || error instanceof ServerError || tries === TRIES) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    chunksOf = (signal) => resumed(message.stream, message.next, signal);
  }
}

// Who sees the end of what is scrolled sees it after a change, too.
function atEnd(box, change) {
  const below = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  change();
  if (below) box.scrollTop = box.scrollHeight;
}

function addToCall(calls, { index = 0, id, function: called = {} }) {
  const call = (calls[index] ||= { id, type: "function", function: { name: "", arguments: "" } });
  call.id ||= id;
  call.function.name += called.name ?? "";
  call.function.arguments += called.arguments ?? "";
}

function grow(input) {
  input.style.setProperty("height", "auto");
  input.style.setProperty("height", `${Math.min(input.scrollHeight + 2, innerHeight * 0.4)}px`);
}

// A narrower box, as beside the settings, has more lines.
function growWithWidth(input) {
  let width = 0;
  new ResizeObserver(([seen]) => {
    if (seen.contentRect.width === width) return;
    width = seen.contentRect.width;
    requestAnimationFrame(() => grow(input));
  }).observe(input);
}
