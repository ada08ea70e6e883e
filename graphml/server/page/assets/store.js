// Conversations and settings, kept in this browser alone.

const CONVERSATIONS = "graphml-conversations";
const SETTINGS = "graphml-settings";
const ROLES = ["user", "assistant", "tool", "system"];
const FORMAT = "graphml conversations";
const MOST = 50; // conversations; the oldest go first

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise; // written by hand, or by another page
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false; // full, or forbidden: the page goes on without
  }
}

export const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

export class Store {
  constructor() {
    const kept = read(CONVERSATIONS, []);
    this.conversations = Array.isArray(kept) ? kept.filter((one) => Array.isArray(one?.messages)) : [];
    this.settings = { ...read(SETTINGS, {}) };
    if (!this.conversations.length) this.begin();
    this.current = this.conversations[0];
  }

  begin() {
    this.current = { id: newId(), title: "", messages: [] };
    this.conversations.unshift(this.current);
    return this.current;
  }

  open(id) {
    this.current = this.conversations.find((one) => one.id === id) ?? this.current;
  }

  remove(id) {
    this.conversations = this.conversations.filter((one) => one.id !== id);
    if (!this.conversations.length) this.begin();
    if (this.current.id === id) this.current = this.conversations[0];
    this.save();
  }

  get kept() {
    return this.conversations.filter((one) => one.messages.length);
  }

  // All conversations as the text of a file.
  exported() {
    return JSON.stringify({ format: FORMAT, conversations: this.kept }, null, 1);
  }

  // Take the conversations of such a file; those that are here already stay once. Returns how many are new.
  imported(text) {
    const added = checked(text).filter((one) => !this.conversations.some((other) => JSON.stringify(other) === JSON.stringify(one)));
    if (this.kept.length + added.length > MOST) throw new Error(`at most ${MOST} conversations are kept: ${this.kept.length} are here, ${added.length} in the file`);
    const ids = new Set(this.conversations.map((other) => other.id));
    for (const one of added) {
      if (ids.has(one.id)) one.id = newId();
      ids.add(one.id);
    }
    this.conversations = [...added, ...this.kept];
    if (!this.conversations.length) this.begin();
    this.current = this.conversations[0];
    this.save();
    return added.length;
  }

  // Values of tokens are many: where they do not fit, texts alone are kept.
  save() {
    this.conversations = this.conversations.slice(0, MOST);
    if (write(CONVERSATIONS, this.kept)) return;
    const bare = this.kept.map((one) => ({ ...one, messages: one.messages.map(({ tokens, prompt, ...message }) => message) }));
    write(CONVERSATIONS, bare);
  }

  saveSettings() {
    write(SETTINGS, this.settings);
  }
}

// What is wrong with a message of a file; "" for nothing. What pages draw of it has the types that they take.
function flaw(message) {
  const texts = (value, ...names) => names.every((name) => typeof value?.[name] === "string");
  const lists = (value, has) => value === undefined || (Array.isArray(value) && value.every(has));
  const numbers = (value, ...names) => value === undefined || (value !== null && names.every((name) => value[name] === undefined || typeof value[name] === "number"));
  if (!texts(message, "content") || !ROLES.includes(message.role)) return "a role and a text as content";
  if (!["reasoning", "error", "finish", "tool_call_id"].every((name) => message[name] === undefined || texts(message, name))) return "texts";
  if (!lists(message.files, (file) => texts(file, "name", "text"))) return "files with name and text";
  if (!lists(message.tool_calls, (call) => texts(call, "id") && texts(call.function, "name", "arguments"))) return "tool_calls with id and function";
  if (!numbers(message.usage, "prompt_tokens", "completion_tokens") || !numbers(message.timings, "predicted_per_second", "prompt_ms")) return "numbers in usage and timings";
  return "";
}

// The conversations of a file's text; an Error in words where it is none of these.
function checked(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`no JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error(`wanted a file that was exported here, with the format "${FORMAT}"`);
  file.conversations.forEach((one, i) => {
    const messages = Array.isArray(one?.messages) ? one.messages : [null];
    messages.forEach((message, k) => {
      const problem = flaw(message);
      if (problem) throw new Error(`conversation ${i + 1}, message ${k + 1}: wanted ${problem}`);
    });
  });
  return file.conversations.map(({ id, title, messages }) => ({ id: String(id), title: String(title ?? ""), messages: messages.map(({ stream, next, tokens, prompt, ...message }) => message) }));
}
