// The send box: a draft kept over reload, what waits before it, stop while a turn runs.

import { h, kept, replace } from "./dom.js";
import { enclosedOf } from "./enclosed.js";
import { icon } from "./icons.js";
import { S } from "./strings.js";
import { button, toast } from "./ui.js";

const COMMANDS = ["/help", "/new", "/stop", "/status", "/compact", "/memory", "/resume", "/undo", "/retry", "/forget", "/agent"];

export class Composer {
  // `onSend(text, files)`, `onStop()`.
  constructor(key, { onSend, onStop }) {
    this.slot = `draft.${key}`;
    this.onSend = onSend;
    this.input = h("textarea", {
      rows: "1", placeholder: S.send.placeholder, "aria-label": S.send.placeholder, enterkeyhint: "send", dir: "auto",
      "aria-describedby": "send-hint", maxlength: "1000000",
      on: { input: () => this.typed(), keydown: (event) => this.pressed(event) },
    });
    this.stop = button(S.send.stop, onStop, { symbol: "stop", kind: "stop", title: S.send.stopTitle });
    this.stop.hidden = true;
    this.go = h("button.primary", { type: "submit", "aria-label": S.send.send, title: S.send.send }, icon("send"));
    this.waits = h("p.waits", { role: "status" });
    this.enclosed = enclosedOf(key, () => this.grow());
    this.add = button(S.files.add, () => this.enclosed.choose(), { symbol: "clip", only: true, kind: "quiet add" });
    this.commands = h("div.commands", { hidden: true, role: "group", "aria-label": S.send.commands });
    this.element = h("form.composer", { on: { submit: (event) => this.submit(event) } }, this.waits, this.commands, this.enclosed.element, this.enclosed.picker,
      h("div.composer-box", {}, this.add, this.input, this.stop, this.go), h("p.hint.send-hint", { id: "send-hint" }, S.send.hint));
    this.input.value = kept.get(this.slot, "") || "";
    this.grow();
  }

  focus() {
    this.input.focus({ preventScroll: true });
  }

  // How many messages wait behind the running one, and whether one runs.
  show({ running, waiting }) {
    const focused = document.activeElement === this.stop;
    this.stop.hidden = !running;
    // A button that goes away would leave the keyboard nowhere.
    if (focused && !running) this.focus();
    const text = waiting > 0 ? S.send.waiting(waiting) : "";
    if (this.waits.textContent !== text) this.waits.textContent = text;
  }

  typed() {
    kept.set(this.slot, this.input.value || null);
    this.grow();
    this.offer();
  }

  // A message that begins with / and a letter is a command: those that fit are offered.
  offer() {
    const text = this.input.value;
    const fit = /^\/[a-z]*$/.test(text) ? COMMANDS.filter((one) => one.startsWith(text) && one !== text) : [];
    this.commands.hidden = fit.length === 0;
    replace(this.commands, fit.map((one) => button(one, () => {
      this.input.value = `${one} `;
      this.typed();
      this.focus();
    }, { kind: "small", title: S.commands[one.slice(1)] })));
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, 320)}px`;
  }

  // Stop the turn, where one runs; false: none does.
  stopTurn() {
    if (this.stop.hidden) return false;
    this.stop.click();
    return true;
  }

  pressed(event) {
    if (event.key === "Escape" && !event.isComposing) this.stopTurn();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.element.requestSubmit();
    }
  }

  submit(event) {
    event.preventDefault();
    const text = this.input.value;
    // A file that is still on its way goes along once it is there: until then nothing is sent.
    if (this.enclosed.ready === null) return void toast(S.files.wait);
    const files = this.enclosed.take();
    if (!text.trim() && !files.length) return;
    this.input.value = "";
    this.typed();
    this.onSend(text, files);
    this.focus();
  }
}
