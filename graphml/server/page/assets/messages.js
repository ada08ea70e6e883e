// One message as elements: its text as markdown or tokens, its reasoning, tool calls, facts and buttons.

import { button, element } from "./dom.js";
import { markdown } from "./markdown.js";
import { legend, promptView, tokenView } from "./tokens.js";

const REFUSED = "Error: the user refused this call";
const WITHOUT = "This answer was made without probabilities.";
const NAMES = { user: "You", assistant: "Model", tool: "Tool", system: "System" };

// behind: the messages that follow it. actions: {edit, remove, regenerate, answerTool, callTool, showTokens}, each with a message's number; runs(name): of a tool.
export function messageElement(message, index, actions, { tokens, busy, last, behind }) {
  const node = element("article", { class: `message ${message.role}`, "aria-label": NAMES[message.role] ?? message.role },
    element("h2", {}, NAMES[message.role] ?? message.role));
  if (message.reasoning) node.append(reasoning(message, busy));
  node.append(content(message, tokens, last && !busy ? () => actions.regenerate(index) : null));
  for (const file of message.files ?? []) node.append(element("details", { class: "file" }, element("summary", {}, file.name), element("pre", { tabindex: "0" }, file.text)));
  for (const call of message.tool_calls ?? []) node.append(toolCall(call, index, actions, !busy && waits(call, behind)));
  if (message.error) node.append(element("p", { class: "error", role: "alert" }, message.error));
  if (tokens && message.prompt) node.append(promptView(message.prompt.pieces, message.prompt.n_cached));
  if (busy) node.setAttribute("aria-busy", "true");
  else node.append(foot(message, index, actions, last, tokens));
  return node;
}

// again: has the answer written again; null where that cannot be.
function content(message, tokens, again) {
  if (message.denoising) return denoised(message.denoising);
  if (tokens && message.tokens?.length) return element("div", { class: "content" }, tokenView(message.tokens), legend(message.tokens));
  if (message.role === "assistant") return element("div", { class: "content" }, markdown(message.content ?? ""), tokens && (message.finish || message.stopped) ? element("p", { class: "dim" }, WITHOUT, " ", again ? button("Write it again with them", again, { class: "link" }) : null) : null);
  return element("div", { class: "content plain" }, message.content ?? "");
}

// An answer of a diffusion model between its steps: all of it, with what is still open as blocks.
function denoised({ step, steps, open, text }) {
  const runs = text.split(new RegExp(`(${open}+)`)).filter(Boolean);
  return element("div", { class: "content denoising" },
    ...runs.map((run) => element("span", { class: run.startsWith(open) ? "open" : null }, run)),
    element("p", { class: "dim" }, `Step ${step} of ${steps}`));
}

function reasoning(message, busy) {
  const open = busy && !message.content;
  return element("details", { class: "reasoning", open }, element("summary", {}, open ? "Thinking…" : "Reasoning"), element("div", {}, markdown(message.reasoning)));
}

// Whether a call has no result yet, and the conversation has not gone on without it.
function waits(call, behind) {
  return behind.every((one) => one.role === "tool" && one.tool_call_id !== call.id);
}

function toolCall(call, index, actions, open) {
  const box = element("div", { class: "call" }, element("h3", {}, `Calls ${call.function.name}`), element("pre", { tabindex: "0" }, shown(call.function.arguments)));
  if (!open) return box;
  if (actions.runs(call.function.name)) {
    box.append(button("Allow this call", () => actions.callTool(index, call)), button("Refuse", () => actions.answerTool(index, call, REFUSED)));
    return box;
  }
  const input = element("textarea", { rows: 2, "aria-label": `Result of ${call.function.name}` });
  box.append(input, button("Give this result", () => actions.answerTool(index, call, input.value)));
  return box;
}

// Characters that hide others or change their order, which a model may write, as escapes.
function shown(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (hidden) => (hidden === "\n" ? hidden : `\\u{${hidden.codePointAt(0).toString(16)}}`));
}

function foot(message, index, actions, last, tokens) {
  const facts = message.role === "assistant" ? factsOf(message) : "";
  const copy = button("Copy", async (event) => {
    await navigator.clipboard.writeText(message.content ?? "");
    event.target.textContent = "Copied";
  }, { class: "link" });
  return element("footer", {},
    element("span", { class: "facts" }, facts),
    element("span", { class: "actions" }, copy,
      message.role === "user" ? button("Edit", () => actions.edit(index), { class: "link" }) : null,
      message.role === "assistant" && last ? button("Regenerate", () => actions.regenerate(index), { class: "link" }) : null,
      message.role === "assistant" ? button(`${tokens ? "✓ " : ""}Tokens by probability`, () => actions.showTokens(), { class: "link", "aria-pressed": String(Boolean(tokens)) }) : null,
      button("Delete", () => actions.remove(index), { class: "link" })));
}

// Tokens of the prompt from the cache; undefined where no chunk has said it. An answer that was stopped has no usage.
export function cachedOf({ usage, timings }) {
  return usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n;
}

function factsOf({ usage, timings, finish, stopped }) {
  const cached = cachedOf({ usage, timings });
  const prompt = usage?.prompt_tokens ?? timings?.cache_n + timings?.prompt_n, written = usage?.completion_tokens ?? timings?.predicted_n;
  return [
    Number.isFinite(written) ? `${Number.isFinite(prompt) ? `${prompt} + ` : ""}${written} tokens` : null,
    cached ? `${cached} cached` : null,
    timings?.predicted_per_second ? `${timings.predicted_per_second.toFixed(1)} t/s` : null,
    timings?.prompt_ms ? `prompt ${Math.round(timings.prompt_ms)} ms` : null,
    finish === "length" ? "stopped at max tokens" : null,
    stopped ? "stopped" : null,
  ].filter(Boolean).join(" · ");
}
