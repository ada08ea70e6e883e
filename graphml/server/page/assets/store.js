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
    for (const one of added) if (this.conversations.some((other) => other.id === one.id)) one.id = newId();
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
    const wrong = messages.findIndex((message) => typeof message?.content !== "string" || !ROLES.includes(message.role));
    if (wrong >= 0) throw new Error(`conversation ${i + 1}, message ${wrong + 1}: wanted a role and a text as content`);
  });
  return file.conversations.map(({ id, title, messages }) => ({ id: String(id), title: String(title ?? ""), messages: messages.map(({ stream, next, ...message }) => message) }));
}
