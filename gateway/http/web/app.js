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

const drafts = new Map(); // id of our message -> the element of the answer being written
const marks = []; // passing lines about running turns
const sent = new Map(); // id of our message -> its element

function element(who, text) {
  const line = document.createElement("p");
  line.className = `line ${who}`;
  line.textContent = text;
  return line;
}

function shown(one) {
  const line = element(one.pending ? `${one.who} pending` : one.who, one.text);
  if (one.who === "you") sent.set(one.id, line);
  return line;
}

function add(line) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  log.append(line);
  if (atEnd) log.scrollTop = log.scrollHeight;
  return line;
}

function render() {
  drafts.clear();
  marks.length = 0;
  log.replaceChildren(...kept.lines.map(shown));
  log.scrollTop = log.scrollHeight;
  busy();
}

function busy() {
  stopButton.hidden = !kept.lines.some((one) => one.who === "you" && !one.answered);
}

function forget(messageId) {
  drafts.get(messageId)?.remove();
  drafts.delete(messageId);
  for (const mark of marks.splice(0)) mark.remove();
}

const WAITING = /#notice\.(busy|model_away|storage)$/;

function see(event, resume) {
  if (resume > kept.last) kept.last = resume;
  const answered = event.in_reply_to;
  const open = kept.lines.some((one) => one.id === answered && !one.answered);
  if (event.kind === "delta") {
    if (!open) return;
    if (!drafts.has(answered)) drafts.set(answered, add(element("draft", "")));
    drafts.get(answered).textContent += event.text;
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 160) log.scrollTop = log.scrollHeight;
  } else if (event.kind === "tool") {
    forget(answered);
    marks.push(add(element("tool", `uses ${event.text} …`)));
  } else if (event.kind === "queued") {
    if (open) marks.push(add(element("tool", "waits for its turn …")));
  } else if (event.kind === "reply" || event.kind === "notice") {
    if (kept.lines.some((one) => one.event === event.id)) return save();
    if (!WAITING.test(event.id)) {
      forget(answered);
      for (const one of kept.lines) if (one.id === answered) Object.assign(one, { answered: true, pending: false });
    }
    const who = event.kind === "reply" ? "them" : "notice";
    kept.lines.push({ who, text: event.text, event: event.id });
    add(element(who, event.text));
    busy();
  }
  save();
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
        byId("login-error").textContent = answer ? "That is not the token." : "The gateway does not answer.";
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
    const answer = await post("/v1/messages", { chat_id: where, text: line.text, id: line.id }).catch(() => null);
    if (answer?.status === 401) {
      await login();
      continue;
    }
    if (where !== chat) return;
    if (answer?.ok) {
      line.pending = false;
      sent.get(line.id)?.classList.remove("pending");
      return save();
    }
    if (answer && answer.status !== 503 && answer.status < 500) {
      const said = await answer.json().catch(() => ({}));
      Object.assign(line, { pending: false, answered: true });
      kept.lines.push({ who: "error", text: `Not sent: ${said.error || answer.status}` });
      save();
      return render();
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
      const answer = await fetch(`/v1/events?key=${encodeURIComponent(`web:${chat}`)}`, {
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
        for (const id of [...drafts.keys()]) forget(id);
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

// -- the person --------------------------------------------------------------------------------------

function open(id) {
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
