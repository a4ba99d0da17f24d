// Markdown as nodes. Nothing of a text becomes markup: what is no Markdown of ours stands as it was written.
//
// Blocks: headings, paragraphs, lists (nested, with tasks), quotes, fenced code, tables, rules.
// Inline: code, bold, italics, struck, links and bare addresses of http, https and mailto. Images are links.

import { h } from "./dom.js";
import { S } from "./strings.js";

const MAX_DEPTH = 12;
const MAX_INLINE = 10000;
const MAX_BLOCKS = 5000;
// How many blocks the text that is being read may still have; what follows them stands as it was written.
let blocksLeft = 0;
// Anybody may write a line of any length: no two parts of a pattern that follow each other may take the same.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))(?=[^`]*$)\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/s;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/s;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const DIVIDER = /^:?-+:?$/;
const TASK = /^\[([ xX])\]\s+(.*)$/s;

export function markdown(text) {
  const made = document.createDocumentFragment();
  blocksLeft = MAX_BLOCKS;
  blocks(String(text).replace(/\r\n?/g, "\n").split("\n"), made, 0);
  // The direction last: the browser would look for it again with each block that is added.
  const root = h("div.markdown", {}, made);
  root.setAttribute("dir", "auto");
  return root;
}

function blocks(lines, parent, depth) {
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at++;
      continue;
    }
    if (blocksLeft-- <= 0) {
      parent.append(h("pre", {}, lines.slice(at).join("\n")));
      return;
    }
    const next = depth > MAX_DEPTH ? 0 : fence(lines, at, parent) || heading(line, at, parent) || rule(line, at, parent)
      || quote(lines, at, parent, depth) || list(lines, at, parent, depth) || table(lines, at, parent);
    at = next || paragraph(lines, at, parent, depth);
  }
}

function fence(lines, at, parent) {
  const open = FENCE.exec(lines[at]);
  if (!open) return 0;
  const [, marks, language] = open;
  let end = at + 1;
  const closes = (line) => {
    const trimmed = line.trim();
    return trimmed.length >= marks.length && [...trimmed].every((one) => one === marks[0]);
  };
  while (end < lines.length && !closes(lines[end])) end++;
  parent.append(codeBlock(lines.slice(at + 1, end).join("\n"), language));
  return end + 1;
}

// A block of code with its language and a button that copies it.
export function codeBlock(code, language = "") {
  const copy = h("button.copy", { type: "button", data: { copies: "" } }, S.copy.code);
  copy.addEventListener("click", () => copyText(code, copy));
  return h("div.code", {},
    h("div.code-head", {}, h("span", {}, language || S.copy.plain), copy),
    h("pre", { tabindex: "0", role: "region", "aria-label": S.copy.label(language) }, h("code", {}, code)));
}

export async function copyText(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = S.copy.done;
  } catch {
    button.textContent = S.copy.failed;
  }
  setTimeout(() => (button.textContent = before), 1500);
}

function heading(line, at, parent) {
  const found = HEADING.exec(line);
  if (!found) return 0;
  // The page has its own h1 and h2: what a message calls its first heading stands below them.
  const level = Math.min(found[1].length + 2, 6);
  const made = h(`h${level}`);
  inline(unclosed(found[2]), made, 0);
  parent.append(made);
  return at + 1;
}

// A heading without the marks that may close it.
function unclosed(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end--;
  return text.slice(0, end).trimEnd();
}

function rule(line, at, parent) {
  if (!RULE.test(line)) return 0;
  parent.append(h("hr"));
  return at + 1;
}

function quote(lines, at, parent, depth) {
  if (!QUOTE.test(lines[at])) return 0;
  const inner = [];
  let end = at;
  for (; end < lines.length; end++) {
    const found = QUOTE.exec(lines[end]);
    if (found) inner.push(found[1]);
    else if (lines[end].trim() && inner.at(-1)?.trim() && !begins(lines, end)) inner.push(lines[end]);
    else break;
  }
  const made = h("blockquote");
  blocks(inner, made, depth + 1);
  parent.append(made);
  return end;
}

function list(lines, at, parent, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first || RULE.test(lines[at])) return 0;
  const ordered = /\d/.test(first[2]);
  const start = ordered ? parseInt(first[2], 10) : 1;
  const made = h(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {});
  const indent = first[1].length;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || blocksLeft-- <= 0 || item[1].length < indent || item[1].length > indent + 3 || /\d/.test(item[2]) !== ordered || RULE.test(lines[end])) break;
    const content = item[1].length + item[2].length + Math.min(item[3].length, 4);
    const inner = [item[4]];
    end++;
    let blank = false;
    for (; end < lines.length; end++) {
      const line = lines[end];
      if (!line.trim()) {
        blank = true;
        inner.push("");
        continue;
      }
      const deep = line.length - line.trimStart().length;
      if (deep >= Math.min(content, indent + 2)) inner.push(line.slice(Math.min(deep, content)));
      else if (!blank && !begins(lines, end)) inner.push(line.trim());
      else break;
      blank = false;
    }
    made.append(listItem(inner, depth));
  }
  parent.append(made);
  return end;
}

function listItem(lines, depth) {
  const made = h("li");
  const task = TASK.exec(lines[0]);
  if (task) {
    const done = task[1] !== " ";
    made.classList.add("task");
    made.append(h("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? S.copy.taskDone : S.copy.taskOpen }));
    lines = [task[2], ...lines.slice(1)];
  }
  const last = lines.findLastIndex((line) => line.trim());
  const loose = lines.some((line, at) => at < last && !line.trim());
  blocks(lines, made, depth + 1);
  // A tight list has no paragraphs.
  if (!loose) for (const p of [...made.children]) if (p.tagName === "P") p.replaceWith(...p.childNodes);
  return made;
}

function table(lines, at, parent) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !cells(lines[at + 1]).every((cell) => DIVIDER.test(cell))) return 0;
  const head = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) => (/^:.*:$/.test(cell) ? "center" : /:$/.test(cell) ? "end" : ""));
  if (head.length !== sides.length) return 0;
  // A short row is not filled up: many of them below a wide head would be far more cells than characters.
  const row = (texts, name) => h("tr", {}, texts.slice(0, head.length).map((text, i) => {
    const cell = h(name, { class: sides[i] ? `to-${sides[i]}` : null });
    inline(text, cell, 0);
    return cell;
  }));
  let end = at + 2;
  const rows = [];
  for (; end < lines.length && blocksLeft-- > 0 && lines[end].trim() && lines[end].includes("|"); end++) rows.push(row(cells(lines[end]), "td"));
  parent.append(h("div.table", { tabindex: "0", role: "region", "aria-label": S.copy.table },
    h("table", {}, h("thead", {}, row(head, "th")), h("tbody", {}, rows))));
  return end;
}

const cells = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));

const begins = (lines, at) => FENCE.test(lines[at]) || HEADING.test(lines[at]) || RULE.test(lines[at]) || QUOTE.test(lines[at]) || ITEM.test(lines[at]);

function paragraph(lines, at, parent, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && (depth > MAX_DEPTH || !begins(lines, end))) end++;
  const made = h("p");
  lines.slice(at, end).forEach((line, i) => {
    if (i) made.append(h("br"));
    inline(line.trim(), made, 0);
  });
  parent.append(made);
  return end;
}

// -- within a line -----------------------------------------------------------------------------------

const INLINE = new RegExp([
  "(?<code>(?<ticks>`+)(?!`)(?<coded>[^`]|[^`].*?[^`])\\k<ticks>(?!`))",
  "(?<escape>\\\\[!-/:-@[-`{-~])",
  "(?<strong>\\*\\*(?=\\S)(?<bold>.+?)(?<=\\S)\\*\\*(?!\\*)|__(?=\\S)(?<bold2>.+?)(?<=\\S)__(?!\\w))",
  "(?<em>\\*(?=[^\\s*])(?<italic>[^*]*?[^\\s*])\\*(?!\\*)|(?<!\\w)_(?=[^\\s_])(?<italic2>[^_]*?[^\\s_])_(?!\\w))",
  "(?<del>~~(?=\\S)(?<struck>.+?)(?<=\\S)~~)",
  "(?<link>!?\\[(?<label>(?:[^\\[\\]\\\\]|\\\\.){0,500})\\]\\((?<target><[^<>]{0,2000}>|[^\\s()<>]{0,2000}(?:\\([^\\s()]{0,500}\\)[^\\s()<>]{0,2000})?)(?:\\s+\"[^\"]{0,300}\")?\\))",
  "(?<auto><?(?:https?://|mailto:)[^\\s<>\"'`]{1,2000})",
].join("|"), "gs");

function inline(text, parent, depth) {
  if (depth > MAX_DEPTH || text.length > MAX_INLINE) {
    parent.append(text);
    return;
  }
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    const g = found.groups;
    if (found.index < last) continue;
    if (found.index > last) parent.append(text.slice(last, found.index));
    last = found.index + found[0].length;
    if (g.code) parent.append(h("code", {}, g.coded.replace(/^ (.*[^ ].*) $/s, "$1")));
    else if (g.escape) parent.append(g.escape[1]);
    else if (g.strong) nested("strong", g.bold ?? g.bold2, parent, depth);
    else if (g.em) nested("em", g.italic ?? g.italic2, parent, depth);
    else if (g.del) nested("del", g.struck, parent, depth);
    else if (g.link) link(g, found[0], parent, depth);
    else last = found.index + bare(found[0], parent);
  }
  if (last < text.length) parent.append(text.slice(last));
}

function nested(name, text, parent, depth) {
  const made = h(name);
  inline(text, made, depth + 1);
  parent.append(made);
}

// The address of a link that may be followed; null for every other scheme, and for what is no address at all.
export function safeAddress(text) {
  try {
    const found = new URL(text.trim().replace(/^<|>$/g, ""));
    return ["http:", "https:", "mailto:"].includes(found.protocol) ? found.href : null;
  } catch {
    return null;
  }
}

const anchor = (href, ...children) => h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);

function link(groups, whole, parent, depth) {
  const href = safeAddress(groups.target);
  if (!href) {
    parent.append(whole);
    return;
  }
  const made = anchor(href);
  if (groups.label.trim()) inline(groups.label, made, Math.max(depth + 1, MAX_DEPTH - 2));
  else made.append(href);
  // A link in a link is none: its words stay.
  for (const inner of made.querySelectorAll("a")) inner.replaceWith(...inner.childNodes);
  parent.append(made);
}

const balanced = (text) => text.split("(").length >= text.split(")").length;

// A bare address; punctuation behind it belongs to the sentence. Returns how many characters were taken.
function bare(found, parent) {
  const wrapped = found.startsWith("<");
  let text = wrapped ? found.slice(1) : found;
  while (!wrapped && /[.,;:!?)\]*_~]$/.test(text) && !(text.endsWith(")") && balanced(text))) text = text.slice(0, -1);
  const href = safeAddress(text);
  parent.append(href ? anchor(href, text) : text);
  return text.length + (wrapped ? 2 : 0);
}
