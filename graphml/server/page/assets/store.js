// Conversations and settings, kept in this browser alone.

const CONVERSATIONS = "graphml-conversations";
const SETTINGS = "graphml-settings";
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

export class Store {
  constructor() {
    const kept = read(CONVERSATIONS, []);
    this.conversations = Array.isArray(kept) ? kept.filter((one) => Array.isArray(one?.messages)) : [];
    this.settings = { ...read(SETTINGS, {}) };
    if (!this.conversations.length) this.begin();
    this.current = this.conversations[0];
  }

  begin() {
    this.current = { id: crypto.randomUUID?.() ?? String(Date.now()), title: "", messages: [] };
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

  // Values of tokens are many: where they do not fit, texts alone are kept.
  save() {
    this.conversations = this.conversations.slice(0, MOST);
    const kept = this.conversations.filter((one) => one.messages.length);
    if (write(CONVERSATIONS, kept)) return;
    const bare = kept.map((one) => ({ ...one, messages: one.messages.map(({ tokens, prompt, ...message }) => message) }));
    write(CONVERSATIONS, bare);
  }

  saveSettings() {
    write(SETTINGS, this.settings);
  }
}
