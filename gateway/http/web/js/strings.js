// Every word that the page shows, in English.

const plural = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

export const S = {
  name: "chat-gateway",
  loading: "Loading …",
  again: "Try again",
  more: "Show more",
  cancel: "Cancel",
  close: "Close",
  save: "Save",
  unknown: "unknown",
  errors: {
    away: "The gateway does not answer",
    awayHint: "it may be restarting; this page tries again",
    status: (status) => `The gateway answered ${status}`,
  },
  unavailable: { title: "Not available", text: (what) => `This gateway does not offer ${what}.` },
  time: { today: "Today", yesterday: "Yesterday", never: "never", ago: (span) => `${span} ago`, ahead: (span) => `in ${span}` },
  nav: {
    label: "Views", menu: "Menu", skip: "Skip to the content", waiting: "waiting",
    chats: "Chats", search: "Search", approvals: "Approvals", parked: "Parked", schedules: "Schedules", memory: "Memory",
    people: "People", usage: "Usage", health: "Health", config: "Configuration", trace: "Trace",
  },
  themes: { auto: "System colours", light: "Light", dark: "Dark", label: (name) => `Colours: ${name}. Press to change` },
  keys: {
    title: "Keyboard",
    list: [
      ["/", "search the chats"], ["n", "begin a chat"], ["r", "write in the open chat"], ["↑ ↓", "move in the list of chats"],
      ["Enter", "send; open the chosen chat"], ["Shift Enter", "a new line"], ["Esc", "stop the answer, leave a field, close a dialog"],
      ["g c", "go to the chats"], ["g s", "go to the search"], ["g a", "go to the approvals"], ["g p", "go to the parked messages"], ["g j", "go to the schedules"],
      ["g m", "go to the memory"], ["g e", "go to the people"], ["g u", "go to the usage"], ["g h", "go to the health"], ["g o", "go to the configuration"], ["g t", "go to the trace"], ["?", "this list"],
    ],
  },
  login: {
    title: "Sign in", text: "This gateway asks for a token. It stays in a cookie that no script can read.",
    token: "Token", go: "Sign in", wrong: "That is not a token of this gateway.", named: (name) => `The token ${name}`, out: "Sign out", outTitle: (name) => `Sign out (${name})`, unsent: (count) => `${plural(count, "message has", "messages have")} not been taken by the gateway yet. Whoever signs out loses what is not sent.`, ended: "You were signed out: the token was revoked, or its time is over. Nothing that you wrote here is lost.", rights: { read: "May only look", write: "May not let in, allow or configure" },
  },
  copy: {
    code: "Copy", message: "Copy", done: "Copied", failed: "Not allowed", plain: "text", label: (language) => (language ? `Code, ${language}` : "Code"),
    table: "Table", taskDone: "done", taskOpen: "to do",
  },
  chats: {
    title: "Chats", fresh: "New chat", filter: "Filter chats", none: "No chats yet",
    noneText: "Begin one here, or write to the bot on Telegram or Discord.", nothing: "No chat has these words in its name or last message",
    searchAll: "Search everything that was said", found: (found, all) => `${found.toLocaleString("en")} of ${plural(all, "chat", "chats")}`,
    unnamed: (id) => `Chat ${id}`, silent: "nothing said yet", above: (count) => `${count} new`, they: (text) => text, ended: "ended", kept: "kept", unread: "new",
  },
  lane: {
    running: "answering", runningFor: (time) => `answering for ${time}`, asks: "needs your word", again: "trying again", away: "no word from the gateway", waiting: (count) => `+${count} waiting`,
  },
  talk: {
    title: "Conversation", label: "Messages", back: "Back to the chats", details: "Details", away: "Connecting again …", down: "To the newest message",
    choose: "No chat is open", chooseText: "Choose one from the list, or press n to begin another.",
    none: "A fresh start", noneText: "Write the first message below.", ended: "This conversation has ended. It can be read, and opened again.", present: "To the present one",
    said: (text) => `Answer: ${text}`,
  },
  send: {
    placeholder: "Message", send: "Send", stop: "Stop", stopTitle: "Stop the answer (Esc)", hint: "Enter sends, Shift + Enter begins a new line, / shows commands; files can be dropped or pasted", commands: "Commands",
    waiting: (count) => `${plural(count, "message waits", "messages wait")} for this turn to end`,
  },
  files: {
    label: "Files that go along", add: "Add files", sending: "on its way …", pasted: "pasted", wait: "A file is still on its way", drop: "Drop files here to send them along",
    remove: (name) => `Take ${name} out`, arrived: (name) => `${name} goes along`, large: (name, most) => `${name} is too large: a file may have ${most}`,
    empty: (name) => `${name} is empty`, many: (most) => `A message takes ${most} files along, and no more`,
  },
  commands: {
    help: "what can be asked for", new: "end this conversation and begin another", stop: "stop the running turn", status: "what goes on in this chat",
    compact: "compact the conversation now", memory: "what is remembered", resume: "open an older conversation", undo: "withdraw the last exchange",
    retry: "ask the last message again", forget: "take a fact out", agent: "who answers here, or shall",
  },
  pending: { sending: "sending", again: "not sent yet, trying again", waiting: "waiting", running: "being answered", failed: "not sent", back: "Back into the send box",
    old: "Typed too long ago to be sent by itself – look whether it was answered, and send it again if not" },
  entry: {
    you: "You", person: "Person", model: "Model", system: "System", tool: "Tool", notice: "Notice", answer: "Gateway", trace: "Trace",
    by: (who, when) => `${who}, ${when}`, writing: "writing", uses: (tool) => `uses ${tool}`, older: "Older messages are coming …",
    begun: (when) => `The chat began ${when}`, fresh: (name, when) => `${name ? `${name} · ` : ""}new conversation, ${when}`,
    ended: (name) => (name ? `${name} has ended` : "The conversation has ended"), resume: "Go on with it", resumeThis: "Open again",
    keptFrom: "From here on the model sees every word", overlay: "What came before is summed up", compact: "The conversation before is summed up",
    before: (tokens) => `${tokens} tokens before`, summaryHint: "The model sees this summary in place of the older messages. They stay here.",
    undo: "The exchange above was withdrawn", withdrawn: "withdrawn", stopped: "stopped", interrupted: "interrupted", edited: "edited", deleted: "deleted", failed: "failed",
    editedTo: "Edited to:", arguments: "Arguments", result: "Result", noResult: "no result", noResultText: "No result is stored: it still runs, or was cut off.", emptyResult: "(nothing)",
    nothingYet: "Stopped before a word was written.", all: (count) => `Show all ${count} characters`, cut: (count) => `Only the beginning is shown here, of ${count} characters.`,
    files: "Files", spent: (prompt, completion, cost) => [`${prompt} tokens in, ${completion} out`, cost].filter(Boolean).join(" · "),
  },
  details: {
    title: "Details", agent: "Agent", none: "Nothing is stored of this chat yet.", name: "Name", instructions: "Instructions", instructionsHint: "Added to what the model is told, in this conversation alone.",
    saved: "Saved", key: "Key", session: "Session", state: "State", active: "active", endedAt: (when) => `ended ${when}`, created: "Begun", messages: "Messages",
    tokens: "Tokens", tokensOf: (prompt, completion) => `${prompt} in, ${completion} out`, cost: "Cost", model: "Model", summary: "Summary", search: "Search this chat",
    end: "End the conversation", endText: "It is archived and can be opened again. The next message begins another one.", endDone: "The conversation has ended",
    remove: "Delete for good", removeText: (count) => `Its ${count} messages are removed. This cannot be undone.`, removed: "Deleted",
    sessions: "Conversations of this chat", line: (count, when) => ` ${count} messages, last ${when}`,
  },
  approvals: {
    about: "Tool calls that wait for a word. Each can be allowed or denied once.", none: "Nothing waits for you", noneText: "When a tool needs a word, it shows here and in its chat.",
    asks: (tool) => `May ${tool} run?`, where: (folder, until) => `In ${folder}. Until ${until}.`, allow: "Allow", deny: "Deny",
    allowTool: (tool) => `Allow ${tool}`, denyTool: (tool) => `Deny ${tool}`, allowed: (tool) => `${tool} may run`, denied: (tool) => `${tool} was denied`,
    waiting: (count) => plural(count, "tool call waits for your word", "tool calls wait for your word"),
  },
  search: {
    about: "What was said in all chats, their notes and facts, found by its words.", words: "Words", where: "Where", everywhere: "All chats", go: "Search", hits: "What was found",
    begin: "What are you looking for?", beginText: "A few words, or a question.", looking: (done, all) => `Looked through ${done.toLocaleString("en")} of ${plural(all, "chat", "chats")} …`, progress: "How much was searched",
    found: (count) => plural(count, "hit, the best first", "hits, the best first"), notAll: "Some chats are still being indexed: search again in a moment.", none: "Nothing was found", noneText: "Try fewer words, or other ones.",
    by: (who) => ({ user: "Person", assistant: "Model" })[who] ?? who, kinds: { fact: "fact", memory: "notes", history: "history" },
  },
  parked: {
    about: "Messages that were set aside because they could not be answered or sent. None is lost.", none: "Nothing is parked", noneText: "Whatever cannot be answered is set aside here, with the reason.",
    inbound: "not answered", outbound: "not sent", why: "Why:", see: "See it among the parked messages", cure: "What helps:", unreadable: "of no chat that could be read", attempts: (count) => plural(count, "attempt", "attempts"),
    retry: "Try again", retried: "Put back into its queue", retriedAll: (back, not) => `${plural(back, "message was", "messages were")} put back${not ? `, ${not} not` : ""}`, retryAll: "Try all again", retryAllText: (count) => `${plural(count, "message goes", "messages go")} back to the end of its queue.`,
    show: "Show", letter: "The message as it came", drop: "Drop", dropText: "It is removed for good, and will not be answered.", dropped: "Dropped",
  },
  health: {
    about: "The daemon, its queue and its platforms, as they are now.", state: "state", ready: "ready", notReady: "not ready", running: "turns running", waiting: "waiting", parked: "parked", tokens: "tokens today", cost: "cost today",
    parts: "Parts", up: "up", down: "down", since: (ago) => `since ${ago}`, daemon: "Daemon", version: "Version", role: "Role", pid: "Process", started: "Started", model: "Model", media: "Files of people", memory: "Held in memory",
    inMemory: (letters, size, most) => `${letters} messages, ${size} of ${most}`, lanes: "Lanes", noLanes: "No chat has anything waiting", chat: "Chat", idle: "waits", queues: "Queues", queue: "Queue", letters: "Messages", oldest: "Oldest", queueAway: "The queue does not answer.",
    silent: (count) => `${plural(count, "other daemon does", "other daemons do")} not answer: what runs there is not shown.`, unserved: (channel, count) => `${count} replies wait for ${channel}, which nothing serves`, background: "Background work", jobs: "Jobs", jobsOf: (running, waiting) => `${running} running, ${waiting} waiting`, facts: "Chats whose facts are due", next: "Next", reasons: "Waits because", lastError: "Last error", subagents: "Subagents",
  },
  memory: {
    about: "What is kept of a chat beside its messages, and told to the model.", chat: "Chat", agent: "Agent", agentNow: (name) => `${name}, who answers here`, agentFormer: (name) => `${name}, no longer configured`, agentSilent: (name) => `${name}, remembers nothing yet`, choose: "Choose a chat", none: "No chat is chosen", noneText: "Choose one above.",
    tabs: { notes: "Notes", profile: "Profile", facts: "Facts", history: "History", versions: "Versions" }, notesHint: "What matters of older messages. The model reads it in every turn.", profileHint: "Who the person is, in words. The model reads it in every turn.",
    saved: "Saved; what stood there is among the versions", clear: "Empty it", clearText: (name) => `Everything in ${name} is taken out. What stood there is kept among the versions.`, cleared: "Emptied",
    noFacts: "No facts yet", noFactsText: "They are drawn from a conversation once it has been quiet for a while.", former: (count) => plural(count, "former fact", "former facts"), edit: "Edit", editFact: "Edit a fact", fact: "Fact", editOf: (text) => `Edit: ${text}`,
    forget: "Forget", forgetText: (text) => `“${text}” is taken out for good.`, forgetOf: (text) => `Forget: ${text}`, forgotten: "Forgotten", sure: (percent) => `${percent} % sure`,
    noHistory: "No history yet", noHistoryText: "What is moved out of the conversation is noted here, day by day.", noVersions: "Nothing has changed yet", noVersionsText: "What notes, profile and facts said before a change is kept here.",
    restore: "Put back", restoreOf: (file, when) => `Put back ${file} of ${when}`, restoreText: (file, when) => `${file} says again what it said on ${when}. What it says now becomes a version.`, restored: "Put back", size: (count) => `${count} bytes`,
  },
  schedules: {
    about: "What the gateway does by the clock.", none: "No schedules yet", noneText: "A schedule asks the model something at its time, and sends the answer to a chat.", add: "Add a schedule", added: "Added",
    every: (span) => `every ${span}`, once: (when) => `once, ${when}`, unknown: "unknown", off: "off", agent: (name) => `agent ${name}`, next: (when, ago) => `next ${when} (${ago})`, noNext: "does not run again", last: (when) => `last ${when}`, never: "never ran", runs: "Next and past runs", coming: "Next", past: "Past",
    run: "Run now", begun: "It runs now", pause: "Switch off", paused: "Switched off", resume: "Switch on", resumed: "Switched on", remove: "Remove", removeText: (name) => `“${name}” runs no more. Its conversation stays.`, removed: "Removed", talk: "Conversation",
    kind: "When", kinds: { every: "Every", cron: "By cron", at: "Once at", heartbeat: "Heartbeat" }, hints: { every: "As 30m, 2h or 1d", cron: "Minute, hour, day, month, weekday: 0 9 * * 1-5", at: "As 2027-01-01T09:00", heartbeat: "As 30m; it looks whether there is anything to do" },
    zone: "Time zone", zoneHint: "Empty: that of the person who gets the answers, else the gateway's", message: "Message", messageHint: "What the model is asked. A heartbeat needs none.", to: "Answers go to", nowhere: "Nobody: its own conversation", session: "It runs in", sessions: { job: "its own conversation", chat: "that chat's conversation" }, name: "Name",
    missedLabel: "Runs that were missed", missed: { once: "are made up once", skip: "are left out", all: "are all made up" },
  },
  people: {
    about: "Strangers and groups get a code when they write to the bot. One press lets them in.", what: "pairing over the page", asking: "Waiting to be let in", inside: "Let in", none: "Nobody waits", noneText: "Who writes to the bot for the first time shows here.", nobody: "Nobody was let in by a code yet.",
    approve: "Let in", approveOf: (name) => `Let in ${name}`, approved: (name) => `${name} was let in`, refuse: "Refuse", refuseOf: (name) => `Refuse ${name}`, refused: (name) => `${name} was refused`, revoke: "Take back", revokeOf: (name) => `Take back the access of ${name}`, revokeText: (name) => `${name} is not answered any more.`, revoked: (name) => `${name} is let in no more`, code: "Code",
  },
  usage: {
    about: "Tokens and cost of all calls, by day in UTC.", what: "the usage of past days", span: "How far back", days: (count) => `${count} days`, turns: "Turns", calls: "Background calls", prompt: "Tokens in", completion: "Tokens out", tokens: "Tokens", cost: "Cost",
    budgets: "Budgets of today", left: (left, of) => `${left} left of ${of}`, limits: { tokens_per_day: "Tokens a day", cost_per_day_usd: "Cost a day", cost_per_chat_per_day_usd: "Cost of a chat a day", cost_per_person_per_day_usd: "Cost of a person a day", cost_per_job_per_day_usd: "Cost of a schedule a day" },
    none: "Nothing was spent in this time", noneText: "The built-in model echo costs nothing. Set model.name to have a real one answer.", tokensByDay: "Tokens by day", costByDay: "Cost by day", turnsByDay: "Turns by day", cap: "Cap of a day", capAbove: (most) => `Cap of a day: ${most}, above this chart`, tokensOf: (prompt, completion) => `${prompt} in, ${completion} out`,
    byModel: "By model", byChat: "By chat", byPerson: "By person", who: "Of", unnamed: "unnamed", more: (count) => `and ${count.toLocaleString("en")} more`,
  },
  config: {
    about: "What is in force now. It is changed in the file, and read at the start.", what: "its configuration over the page", settings: "Settings", doctor: "Doctor", filter: "Filter", readOnly: "Secrets are hidden. chat-gateway config path names the file.", top: "Top level", nothing: "No setting has these words", unset: "not set", yes: "yes", no: "no",
    doctorWhat: "the doctor over the page", summary: (fail, warn, ok) => `${plural(fail, "failure", "failures")}, ${plural(warn, "warning", "warnings")}, ${ok} fine`, incomplete: "The time ran out before the last check.", again: "Look again", levels: { ok: "ok", warn: "warn", fail: "fail" }, cure: (text) => `Try: ${text}`,
  },
  trace: {
    about: "What became of a message, from its coming to its answer, by the id that logs, transcripts and parked messages name.", what: "the trace of messages", id: "Id of a message", go: "Trace", begin: "Which message?", chat: "Chat", steps: "Steps", unknownTime: "at a time that nothing tells", unknown: "What nothing tells",
  },
};
