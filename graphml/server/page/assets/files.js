// Text files beside a message: chosen, shown, taken away, and put into what the model is given.

import { button, byId, element } from "./dom.js";

const LARGEST = 1 << 20; // bytes

export class Files {
  constructor() {
    this.all = [];
    const input = byId("file");
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", async () => {
      const chosen = [...input.files];
      input.value = "";
      this.wrong = "";
      for (const file of chosen) await this.add(file);
      this.draw();
      byId("message").focus();
    });
  }

  async add(file) {
    try {
      if (file.size > LARGEST) throw new Error("at most 1 MiB is wanted");
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new Error("it has zero bytes");
      this.all.push({ name: file.name, text });
    } catch (error) {
      this.wrong = `${file.name}: wanted a text file in UTF-8${error instanceof TypeError ? "" : `; ${error.message}`}`;
    }
  }

  show(files) {
    this.all = [...files];
    this.wrong = "";
    this.draw();
  }

  // What is sent; nothing is left.
  take() {
    const files = this.all;
    this.show([]);
    return files;
  }

  draw() {
    const chip = (file) => element("li", {}, file.name, button("×", () => this.show(this.all.filter((other) => other !== file)), { class: "quiet", "aria-label": `Take ${file.name} away` }));
    byId("files").replaceChildren(...this.all.map(chip), ...(this.wrong ? [element("li", { class: "error", role: "alert" }, this.wrong)] : []));
    byId("files").hidden = !byId("files").children.length;
  }
}

// A message's text with its files, as the model reads them.
export function withFiles(content, files = []) {
  return [content, ...files.map(({ name, text }) => `File ${name}:\n${fence(text)}\n${text}\n${fence(text)}`)].filter(Boolean).join("\n\n");
}

// Longer than any that the text has.
function fence(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((ticks) => ticks.length));
  return "`".repeat(longest + 1);
}
