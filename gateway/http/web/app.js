// One chat in a page: sends with ids of its own, follows the event stream, shows every text once.

const KEPT = 300;
const byId = (id) => document.getElementById(id);
const log = byId("log"), input = byId("text"), stopButton = byId("stop"), state = byId("state");

const fresh = () => [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// -- what is kept: the chat's id, its lines, and the seq up to which the stream was seen -------------

let chat = localStorage.getItem("chat-gateway.chat") || "";
let kept = { last: 0, lines: [] };
const slot = () => `chat-gateway.chat.${chat}`;

function load() {
  try {
    const found = JSON.parse(localStorage.getItem(slot()));
    kept = found && Array.isArray(found.lines) ? found : { last: 0, lines: [] };
  } catch {
    kept = { last: 0, lines: [] };
  }
}

function save() {
  kept.lines = kept.lines.slice(-KEPT);
  try {
    localStorage.setItem("chat-gateway.chat", chat);
    localStorage.setItem(slot(), JSON.stringify(kept));
  } catch {
    // a full or forbidden storage costs the memory of this page, nothing else
  }
}

// -- what is shown -----------------------------------------------------------------------------------

const elements = new Map(); // line -> its element
const passing = new Map(); // id of our message -> { text, draft, marks } while its answer is being written

function element(who, text) {
  const line = document.createElement("p");
  line.className = `line ${who}`;
  line.textContent = text;
  return line;
}

function shown(one) {
  const line = element(one.pending ? `${one.who} pending` : one.who, one.text);
  elements.set(one, line);
  return line;
}

// Put an element into the log: behind `after`, or at its end; a reader at the end stays there.
function add(line, after) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 160;
  if (after) after.after(line);
  else log.append(line);
  if (atEnd) log.scrollTop = log.scrollHeight;
  return line;
}

// The place of the last line that belongs to a message: the message, then what answered it; -1 if not ours.
const lastOf = (id) => (id ? kept.lines.findLastIndex((one) => one.id === id || one.to === id) : -1);

// Keep and show a line under the message that it answers, however many were sent since.
function answer(one) {
  const at = lastOf(one.to);
  if (at < 0) {
    kept.lines.push(one);
    add(shown(one));
  } else {
    kept.lines.splice(at + 1, 0, one);
    add(shown(one), elements.get(kept.lines[at]));
  }
}

function render() {
  elements.clear();
  log.replaceChildren(...kept.lines.map(shown));
  for (const [id, one] of passing) {
    Object.assign(one, { draft: null, marks: [] });
    if (isOpen(id)) write(id, one.text);
    else passing.delete(id);
  }
  log.scrollTop = log.scrollHeight;
  busy();
}

const isOpen = (id) => kept.lines.some((one) => one.id === id && !one.answered);

function busy() {
  stopButton.hidden = !kept.lines.some((one) => one.who === "you" && !one.answered);
}

function of(messageId) {
  if (!passing.has(messageId)) passing.set(messageId, { text: "", draft: null, marks: [] });
  return passing.get(messageId);
}

// Show the text so far of an answer under its message.
function write(messageId, text) {
  const one = of(messageId);
  one.text = text;
  one.draft ??= add(element("draft", ""), one.marks.at(-1) ?? elements.get(kept.lines[lastOf(messageId)]));
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 160;
  one.draft.textContent = text;
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function mark(messageId, text) {
  const one = of(messageId);
  one.marks.push(add(element("tool", text), elements.get(kept.lines[lastOf(messageId)])));
}

// Take down what passes; return the text that the answer had.
function forget(messageId) {
  const one = passing.get(messageId);
  one?.draft?.remove();
  for (const each of one?.marks ?? []) each.remove();
  passing.delete(messageId);
  return one?.text ?? "";
}

const WAITING = /#notice\.(busy|files|idle|model_away|storage|approval\.[a-z0-9.]+)$/;
const APPROVAL = /#notice\.approval\./;

function see(event, resume) {
  if (resume > kept.last) kept.last = resume;
  const answered = event.in_reply_to;
  if (event.kind === "reply" || event.kind === "notice") {
    told(event, answered);
  } else if (isOpen(answered)) {
    if (event.kind === "started") forget(answered);
    if (event.kind === "draft") write(answered, event.text);
    if (event.kind === "delta") write(answered, of(answered).text + event.text);
    if (event.kind === "queued") mark(answered, "waits for its turn …");
    if (event.kind === "tool") {
      forget(answered);
      mark(answered, `uses ${event.text} …`);
    }
  }
  save();
}

function told(event, answered) {
  if (kept.lines.some((one) => one.event === event.id)) return;
  if (!WAITING.test(event.id)) {
    const soFar = forget(answered);
    // No whole answer comes any more: what was written of it stays.
    if (event.kind === "notice" && soFar) answer({ who: "them", text: soFar, to: answered });
    for (const one of kept.lines) if (one.id === answered) Object.assign(one, { answered: true, pending: false });
  }
  const who = event.kind === "reply" ? "them" : "notice";
  answer({ who, text: event.text, event: event.id, to: answered });
  busy();
  // Without any limit nothing is looked up again.
  if (limited) look();
  if (APPROVAL.test(event.id)) lookAtApprovals();
}

// -- the server --------------------------------------------------------------------------------------

let loggedIn = null; // resolves once the token was accepted

function login() {
  loggedIn ??= new Promise((done) => {
    const dialog = byId("login");
    dialog.addEventListener("cancel", (e) => e.preventDefault());
    byId("login-form").onsubmit = async (e) => {
      e.preventDefault();
      const answer = await post("/v1/login", { token: byId("token").value }).catch(() => null);
      if (answer?.ok) {
        byId("token").value = "";
        dialog.close();
        loggedIn = null;
        done();
      } else {
        const why = answer?.status === 429 ? "Too many wrong tokens: wait a minute." : "That is not the token.";
        byId("login-error").textContent = answer ? why : "The gateway does not answer.";
      }
    };
    dialog.showModal();
  });
  return loggedIn;
}

const post = (path, body) => fetch(path, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

async function send(line, where) {
  for (let wait = 1000; ; wait = Math.min(wait * 2, 15000)) {
    const got = await post("/v1/messages", { chat_id: where, text: line.text, id: line.id }).catch(() => null);
    if (got?.status === 401) {
      await login();
      continue;
    }
    if (where !== chat) return;
    if (got?.ok) {
      line.pending = false;
      elements.get(line)?.classList.remove("pending");
      return save();
    }
    if (got && got.status !== 429 && got.status < 500) {
      const said = await got.json().catch(() => ({}));
      Object.assign(line, { pending: false, answered: true });
      answer({ who: "error", text: `Not sent: ${said.error || got.status}`, to: line.id });
      elements.get(line)?.classList.remove("pending");
      busy();
      return save();
    }
    await pause(wait);
  }
}

let following = new AbortController();

async function follow() {
  following.abort();
  const mine = (following = new AbortController());
  for (let wait = 500; !mine.signal.aborted; wait = Math.min(wait * 2, 8000)) {
    try {
      const answer = await fetch(`/v1/events?draft=true&key=${encodeURIComponent(`web:${chat}`)}`, {
        headers: { "Last-Event-ID": String(kept.last) },
        signal: mine.signal,
      });
      if (answer.status === 401) {
        state.textContent = "needs the token";
        await login();
        continue;
      }
      if (answer.ok) {
        state.textContent = "connected";
        wait = 500;
        look();
        lookAtApprovals();
        await read(answer.body.getReader(), mine.signal);
      }
    } catch {
      // the connection broke: it is taken up again below
    }
    if (mine.signal.aborted) return;
    state.textContent = "connecting again …";
    await pause(wait);
  }
}

async function read(reader, signal) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || signal.aborted) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let resume = 0, data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("id: ")) resume = Number(line.slice(4));
        if (line.startsWith("data: ")) data = line.slice(6);
      }
      if (data) see(JSON.parse(data), resume);
    }
  }
}

// -- what is left of the limits on a day: looked up at the start and behind an answer, at most every few seconds

const LOOK_MS = 3000;
const limits = byId("limits");
let looked = 0, looking = null, limited = false;

const figure = (row, name) => row.limit === "tokens_per_day"
  ? Math.round(row[name]).toLocaleString("en")
  : row[name].toFixed(4);

function limitsShown(rows) {
  const mine = rows.filter((row) => row.who === null || row.who === `web:${chat}`);
  const words = mine.map((row) => {
    const unit = row.limit === "tokens_per_day" ? "tokens" : row.who === null ? "USD" : "USD for this chat";
    return `${figure(row, "left")} of ${figure(row, "of")} ${unit}`;
  });
  limits.hidden = words.length === 0;
  limits.textContent = words.length ? `left today: ${words.join(" · ")}` : "";
}

async function lookAtLimits() {
  await pause(Math.max(looked + LOOK_MS - Date.now(), 0));
  looked = Date.now();
  looking = null;
  const answer = await fetch("/v1/status").catch(() => null);
  if (!answer?.ok) return;
  const rows = (await answer.json()).limits;
  limited = Array.isArray(rows);
  limitsShown(rows ?? []);
}

const look = () => { looking ??= lookAtLimits(); };

// -- what waits for a person's word: looked up at the start and with each notice about one ------------

const approvals = byId("approvals");

// Everything that a model wrote is text here, never markup.
function asked(one) {
  const card = document.createElement("div");
  card.className = "approval";
  const part = (name, text) => {
    const made = document.createElement(name);
    made.textContent = text;
    card.append(made);
    return made;
  };
  part("h2", `May ${one.tool} run?`);
  part("pre", one.arguments);
  part("p", `In ${one.folder}. Until ${new Date(one.expires_at).toLocaleTimeString()}.`);
  for (const [label, decision] of [["Allow", "allow"], ["Deny", "deny"]]) {
    const button = part("button", label);
    button.type = "button";
    button.setAttribute("aria-label", `${label} ${one.tool}`);
    button.addEventListener("click", async () => {
      for (const each of card.querySelectorAll("button")) each.disabled = true;
      const done = await post(`/v1/approvals/${encodeURIComponent(one.id)}`, { decision }).catch(() => null);
      if (done?.status === 401) await login();
      lookAtApprovals();
    });
  }
  return card;
}

async function lookAtApprovals() {
  const mine = chat;
  const answer = await fetch(`/v1/approvals?key=${encodeURIComponent(`web:${mine}`)}`).catch(() => null);
  if (!answer?.ok || mine !== chat) return;
  const open = (await answer.json()).approvals;
  approvals.replaceChildren(...open.map(asked));
  approvals.hidden = open.length === 0;
}

// -- the person --------------------------------------------------------------------------------------

function open(id) {
  passing.clear();
  approvals.replaceChildren();
  approvals.hidden = true;
  chat = id || fresh();
  load();
  save();
  render();
  follow();
  for (const line of kept.lines) if (line.pending) send(line, chat);
}

byId("send").addEventListener("submit", (e) => {
  e.preventDefault();
  const text = input.value;
  if (!text.trim()) return;
  const line = { who: "you", text, id: `web:${fresh()}`, pending: true };
  kept.lines.push(line);
  add(shown(line));
  log.scrollTop = log.scrollHeight;
  input.value = "";
  grow();
  busy();
  save();
  send(line, chat);
});

function grow() {
  input.rows = Math.min(input.value.split("\n").length, 10);
}

input.addEventListener("input", grow);
input.addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    byId("send").requestSubmit();
  }
});
stopButton.addEventListener("click", () => post("/v1/stop", { key: `web:${chat}` }).catch(() => null));
byId("fresh").addEventListener("click", () => open(""));
window.addEventListener("storage", (e) => {
  if (e.key === slot() && e.newValue) {
    load();
    render();
  }
});

open(chat);
