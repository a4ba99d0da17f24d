// The files that go along with the next message: chosen, dropped or pasted, handed in at once, kept over a reload.

import { del, get, upload } from "./api.js";
import { announce, h, kept, replace } from "./dom.js";
import { bytes } from "./format.js";
import { icon } from "./icons.js";
import { S } from "./strings.js";
import { told, toast } from "./ui.js";

const MOST = 20;
// The gateway keeps a file for an hour until a message names it.
const KEPT_MS = 55 * 60 * 1000;
let mostBytes = null;

// key → the files of its send box: a view that is left and opened again has those that are on their way meanwhile.
const known = new Map();

// `onChange()` when a file came, arrived or went; the view before hears of none any more.
export function enclosedOf(key, onChange) {
  if (!known.has(key)) known.set(key, new Enclosed(key));
  return known.get(key).attach(onChange);
}

class Enclosed {
  constructor(key) {
    this.slot = `files.${key}`;
    this.files = [];
    this.isStored = true;
    this.element = h("ul.enclosed", { "aria-label": S.files.label, hidden: true });
    this.picker = h("input", { type: "file", multiple: true, hidden: true, "aria-label": S.files.add, on: { change: () => this.picked() } });
    this.adding = Promise.resolve();
    this.line = Promise.resolve();
  }

  attach(onChange) {
    this.onChange = onChange;
    // Another tab may have sent or added some since; those on their way are of this one.
    const ready = this.isStored ? kept.get(this.slot, []) ?? [] : this.files.filter((one) => one.state === "ready");
    this.files = [...ready.filter((one) => Date.now() - one.at < KEPT_MS), ...this.files.filter((one) => one.state === "sending")];
    this.draw();
    return this;
  }

  // What a message takes along; null while one is still on its way.
  get ready() {
    return this.files.some((one) => one.state === "sending") ? null : this.files.map(({ file }) => file);
  }

  choose() {
    this.picker.click();
  }

  picked() {
    this.add([...this.picker.files]);
    this.picker.value = "";
  }

  // In the order in which they were given, whoever gave them how.
  add(chosen) {
    this.adding = this.adding.then(() => this.each(chosen));
    return this.adding;
  }

  async each(chosen) {
    for (const one of chosen) {
      if (this.files.length >= MOST) return void toast(S.files.many(MOST), "error");
      await this.one(one);
    }
  }

  async one(chosen) {
    try {
      mostBytes ??= (await get("/v1/status")).max_file_bytes ?? Infinity;
    } catch (error) {
      return void told(error);
    }
    // Nothing of what is too large or empty leaves the browser.
    if (chosen.size > mostBytes) return void toast(S.files.large(chosen.name, bytes(mostBytes)), "error");
    if (!chosen.size) return void toast(S.files.empty(chosen.name), "error");
    const entry = { name: chosen.name || S.files.pasted, size: chosen.size, state: "sending", at: Date.now() };
    this.files.push(entry);
    this.changed();
    // One behind the other: the message that is written meanwhile shall not wait for all of them.
    this.line = this.line.then(() => this.hand(entry, chosen));
  }

  async hand(entry, chosen) {
    if (!this.files.includes(entry)) return;
    try {
      entry.file = await upload(chosen, entry.name);
      entry.state = "ready";
      announce(S.files.arrived(entry.name));
      if (!this.files.includes(entry)) await this.letGo(entry);
    } catch (error) {
      this.files = this.files.filter((one) => one !== entry);
      told(error);
    }
    this.changed();
  }

  async remove(entry) {
    this.files = this.files.filter((one) => one !== entry);
    this.changed();
    if (entry.file) await this.letGo(entry);
  }

  async letGo(entry) {
    // The same bytes may stand here twice; and what is gone already is gone.
    if (this.files.some((one) => one.file?.ref === entry.file.ref)) return;
    try {
      await del(`/v1/${entry.file.ref}`);
    } catch (error) {
      if (error.status !== 404) told(error);
    }
  }

  // Hand the files over to the message that is sent.
  take() {
    const files = this.ready ?? [];
    this.files = [];
    this.changed();
    return files;
  }

  putBack(files) {
    this.files.push(...files.map((file) => ({ name: file.name, size: file.size, state: "ready", at: Date.now(), file })));
    this.changed();
  }

  changed() {
    const there = this.files.filter((one) => one.state === "ready");
    kept.set(this.slot, there.length ? there : null);
    this.isStored = (kept.get(this.slot, []) ?? []).length === there.length;
    this.draw();
    this.onChange();
  }

  draw() {
    this.element.hidden = !this.files.length;
    replace(this.element, this.files.map((one) => h("li.chip", { class: one.state },
      icon("file"), h("span.file-name", { dir: "auto", title: one.name }, one.name), h("span.faint", {}, one.state === "sending" ? S.files.sending : bytes(one.size)),
      h("button.quiet.only-icon.small", { type: "button", "aria-label": S.files.remove(one.name), title: S.files.remove(one.name), on: { click: () => this.remove(one) } }, icon("close")))));
  }
}

// Take files that are dragged over an element or pasted into it; what else is dropped is left to the browser.
export function takesFiles(element, input, add) {
  const has = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  let over = 0;
  const mark = (change) => {
    over = change === 0 ? 0 : Math.max(0, over + change);
    element.classList.toggle("dropping", over > 0);
  };
  element.addEventListener("dragenter", (event) => has(event) && (event.preventDefault(), mark(1)));
  element.addEventListener("dragover", (event) => has(event) && event.preventDefault());
  element.addEventListener("dragleave", (event) => has(event) && mark(-1));
  element.addEventListener("drop", (event) => {
    if (!has(event)) return;
    event.preventDefault();
    mark(0);
    add([...event.dataTransfer.files]);
  });
  input.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    add(files);
  });
}
