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
    away: "The gateway is not responding",
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
      ["/", "search the chats"], ["n", "start a chat"], ["r", "write in the open chat"], ["↑ ↓", "move through the list of chats"],
      ["Enter", "send; open the selected chat"], ["Shift Enter", "new line"], ["Esc", "stop the answer, leave a field, close a dialog"],
      ["g c", "go to Chats"], ["g s", "go to Search"], ["g a", "go to Approvals"], ["g p", "go to Parked"], ["g j", "go to Schedules"],
      ["g m", "go to Memory"], ["g e", "go to People"], ["g u", "go to Usage"], ["g h", "go to Health"], ["g o", "go to Configuration"], ["g t", "go to Trace"], ["?", "show this list"],
    ],
  },
  login: {
    title: "Sign in", text: "This gateway needs a token. It is kept in a cookie that scripts cannot read.",
    token: "Token", go: "Sign in", wrong: "This gateway does not know that token.", named: (name) => `The token ${name}`, out: "Sign out", outTitle: (name) => `Sign out (${name})`, unsent: (count) => `${plural(count, "message has", "messages have")} not reached the gateway yet and will be lost if you sign out.`, ended: "You were signed out: the token was revoked or your login expired. Nothing you wrote here is lost.", rights: { read: "Read only", write: "No approvals or configuration" },
  },
  copy: {
    code: "Copy", message: "Copy", done: "Copied", failed: "The browser did not allow it", plain: "text", label: (language) => (language ? `Code, ${language}` : "Code"),
    table: "Table", taskDone: "done", taskOpen: "to do",
  },
  chats: {
    title: "Chats", fresh: "New chat", filter: "Filter chats", none: "No chats yet",
    noneText: "Start one here, or write to the bot on Telegram or Discord.", nothing: "No chat contains these words in its name or last message",
    searchAll: "Search all messages", found: (found, all) => `${found.toLocaleString("en")} of ${plural(all, "chat", "chats")}`,
    unnamed: (id) => `Chat ${id}`, silent: "no messages yet", above: (count) => `${count} new`, they: (text) => text, ended: "ended", kept: "kept", unread: "new",
  },
  lane: {
    running: "answering", runningFor: (time) => `answering for ${time}`, asks: "needs approval", again: "trying again", away: "gateway unreachable", waiting: (count) => `+${count} waiting`,
  },
  talk: {
    title: "Conversation", label: "Messages", back: "Back to chats", details: "Details", away: "Reconnecting …", down: "Go to the newest message",
    choose: "No chat is open", chooseText: "Choose one from the list, or press n to start a new one.",
    none: "No messages yet", noneText: "Write the first message below.", ended: "This conversation has ended. You can read it or reopen it.", present: "Go to the current one",
    said: (text) => `Answer: ${text}`,
  },
  send: {
    placeholder: "Message", send: "Send", stop: "Stop", stopTitle: "Stop the answer (Esc)", hint: "Enter sends, Shift + Enter adds a line, / shows commands; drop or paste files to attach them", commands: "Commands",
    waiting: (count) => `${plural(count, "message waits", "messages wait")} for this answer to finish`,
  },
  files: {
    label: "Attached files", add: "Attach files", sending: "uploading …", pasted: "pasted", wait: "A file is still uploading", drop: "Drop files here to attach them",
    remove: (name) => `Remove ${name}`, arrived: (name) => `${name} is attached`, large: (name, most) => `${name} is too large: the limit is ${most}`,
    empty: (name) => `${name} is empty`, many: (most) => `A message can have ${most} files at most`,
  },
  commands: {
    help: "list the commands", new: "end this conversation and start a new one", stop: "stop the current answer", status: "show the state of this chat",
    compact: "compact the conversation now", memory: "show what is remembered", resume: "reopen an older conversation", undo: "undo the last exchange",
    retry: "retry the last message", forget: "forget a fact", agent: "show or change the agent",
  },
  pending: { sending: "sending", again: "not sent yet, trying again", waiting: "waiting", running: "being answered", failed: "not sent", back: "Edit again",
    old: "Too old to be sent automatically. Check whether it was answered, and send it again if not." },
  entry: {
    you: "You", person: "Person", model: "Model", system: "System", tool: "Tool", notice: "Notice", answer: "Gateway", trace: "Trace",
    by: (who, when) => `${who}, ${when}`, writing: "writing", uses: (tool) => `uses ${tool}`, older: "Loading older messages …",
    begun: (when) => `The chat started ${when}`, fresh: (name, when) => `${name ? `${name} · ` : ""}new conversation, ${when}`,
    ended: (name) => (name ? `${name} has ended` : "The conversation has ended"), resume: "Continue it", resumeThis: "Reopen",
    keptFrom: "From here on the model sees every message", overlay: "Older messages are summarised", compact: "The conversation so far was summarised",
    before: (tokens) => `${tokens} tokens before`, summaryHint: "The model sees this summary instead of the older messages, which stay here.",
    undo: "The exchange above was undone", withdrawn: "undone", stopped: "stopped", interrupted: "interrupted", edited: "edited", deleted: "deleted", failed: "failed",
    editedTo: "Edited to:", arguments: "Arguments", result: "Result", noResult: "no result", noResultText: "No result is stored: the tool is still running or was interrupted.", emptyResult: "(empty)",
    nothingYet: "Stopped before anything was written.", all: (count) => `Show all ${count} characters`, cut: (count) => `Only the beginning of ${count} characters is shown here.`,
    files: "Files", spent: (prompt, completion, cost) => [`${prompt} tokens in, ${completion} out`, cost].filter(Boolean).join(" · "),
  },
  details: {
    title: "Details", agent: "Agent", none: "This chat has no stored messages yet.", name: "Name", instructions: "Instructions", instructionsHint: "Added to the system prompt of this conversation only.",
    saved: "Saved", key: "Key", session: "Session", state: "State", active: "active", endedAt: (when) => `ended ${when}`, created: "Started", messages: "Messages",
    tokens: "Tokens", tokensOf: (prompt, completion) => `${prompt} in, ${completion} out`, cost: "Cost", model: "Model", summary: "Summary", search: "Search this chat",
    end: "End the conversation", endText: "It is archived and can be reopened. The next message starts a new one.", endDone: "The conversation has ended",
    remove: "Delete permanently", removeText: (count) => `Its ${plural(count, "message", "messages")} will be deleted. This cannot be undone.`, removed: "Deleted",
    sessions: "Conversations of this chat", line: (count, when) => ` ${plural(count, "message", "messages")}, last ${when}`,
  },
  approvals: {
    about: "Tool calls waiting for approval. You can allow or deny each one once.", none: "Nothing to approve", noneText: "Tool calls that need approval appear here and in their chat.",
    asks: (tool) => `Allow the tool ${tool}?`, where: (folder, until) => `In ${folder}. Expires ${until}.`, allow: "Allow", deny: "Deny",
    allowTool: (tool) => `Allow ${tool}`, denyTool: (tool) => `Deny ${tool}`, allowed: (tool) => `Allowed ${tool}`, denied: (tool) => `Denied ${tool}`,
    waiting: (count) => plural(count, "tool call needs approval", "tool calls need approval"),
  },
  search: {
    about: "Search messages, notes and facts of all chats.", words: "Words", where: "Where", everywhere: "All chats", go: "Search", hits: "Results",
    begin: "What are you looking for?", beginText: "Enter a few words or a question.", looking: (done, all) => `Searched ${done.toLocaleString("en")} of ${plural(all, "chat", "chats")} …`, progress: "Search progress",
    found: (count) => plural(count, "result", "results, best first"), notAll: "Some chats are still being indexed: search again in a moment.", none: "No results", noneText: "Try fewer or different words.",
    by: (who) => ({ user: "Person", assistant: "Model" })[who] ?? who, kinds: { fact: "fact", memory: "notes", history: "history" },
  },
  parked: {
    about: "Messages that could not be answered or sent. They are kept here until you retry or drop them.", none: "Nothing is parked", noneText: "Messages that cannot be answered appear here with the reason.",
    inbound: "not answered", outbound: "not sent", why: "Why:", see: "Show it in Parked", cure: "Try:", unreadable: "chat unknown: the message is unreadable", attempts: (count) => plural(count, "attempt", "attempts"),
    retry: "Retry", retried: "Queued again", retriedAll: (back, not) => `${plural(back, "message was", "messages were")} queued again${not ? `, ${not} could not be` : ""}`, retryAll: "Retry all", retryAllText: (count) => `${plural(count, "message goes", "messages go")} to the end of the queue.`,
    show: "Show", letter: "The original message", drop: "Drop", dropText: "It will be deleted and never answered.", dropped: "Dropped",
  },
  health: {
    about: "The current state of the gateway, its queue and its platforms.", state: "state", ready: "ready", notReady: "not ready", running: "turns running", waiting: "waiting", parked: "parked", tokens: "tokens today", cost: "cost today",
    parts: "Components", up: "up", down: "down", since: (time) => `for ${time}`, daemon: "Daemon", version: "Version", role: "Role", pid: "Process", started: "Started", model: "Model", media: "Uploads", memory: "In memory",
    inMemory: (letters, size, most) => `${letters} messages, ${size} of ${most}`, lanes: "Lanes", noLanes: "No messages are waiting", chat: "Chat", idle: "waiting", queues: "Queues", queue: "Queue", letters: "Messages", oldest: "Oldest", queueAway: "The queue does not answer.",
    silent: (count) => `${plural(count, "worker process does", "worker processes do")} not respond: their chats are not shown.`, unserved: (channel, count) => `${plural(count, "reply waits", "replies wait")} for ${channel}, which is not enabled`, background: "Background work", jobs: "Jobs", jobsOf: (running, waiting) => `${running} running, ${waiting} waiting`, facts: "Chats waiting for fact extraction", next: "Next", reasons: "Reason for waiting", lastError: "Last error", subagents: "Subagents",
  },
  memory: {
    about: "The gateway's notes about a chat, which it gives to the model.", chat: "Chat", agent: "Agent", agentNow: (name) => `${name} (answers here)`, agentFormer: (name) => `${name} (no longer configured)`, agentSilent: (name) => `${name} (no memory yet)`, choose: "Choose a chat", none: "No chat is chosen", noneText: "Choose one above.",
    tabs: { notes: "Notes", profile: "Profile", facts: "Facts", history: "History", versions: "Versions" }, notesHint: "What matters from older messages. The model reads it in every turn.", profileHint: "A description of the person. The model reads it in every turn.",
    saved: "Saved. The old text is in Versions", clear: "Clear", clearText: (name) => `All of ${name} will be cleared. The old text is kept in Versions.`, cleared: "Cleared",
    noFacts: "No facts yet", noFactsText: "They are extracted once a conversation has been quiet for a while.", former: (count) => plural(count, "former fact", "former facts"), edit: "Edit", editFact: "Edit a fact", fact: "Fact", editOf: (text) => `Edit: ${text}`,
    forget: "Forget", forgetText: (text) => `“${text}” will be deleted.`, forgetOf: (text) => `Forget: ${text}`, forgotten: "Forgotten", sure: (percent) => `${percent} % sure`,
    noHistory: "No history yet", noHistoryText: "Summaries of older messages appear here, by day.", noVersions: "No versions yet", noVersionsText: "Earlier texts of notes, profile and facts are kept here.",
    restore: "Restore", restoreOf: (file, when) => `Restore ${file} from ${when}`, restoreText: (file, when) => `${file} will be reverted to its version from ${when}. The current text is kept in Versions.`, restored: "Restored", size: (count) => `${count} bytes`,
  },
  schedules: {
    about: "Scheduled jobs.", none: "No schedules yet", noneText: "A schedule asks the model something at set times and sends the answer to a chat.", add: "Add a schedule", added: "Added",
    every: (span) => `every ${span}`, once: (when) => `once, ${when}`, unknown: "unknown", off: "off", agent: (name) => `agent ${name}`, next: (when, ago) => `next ${when} (${ago})`, noNext: "will not run again", last: (when) => `last ${when}`, never: "never ran", runs: "Upcoming and past runs", coming: "Next", past: "Past",
    run: "Run now", begun: "Started", pause: "Turn off", paused: "Turned off", resume: "Turn on", resumed: "Turned on", remove: "Remove", removeText: (name) => `“${name}” will not run again. Its conversation stays.`, removed: "Removed", talk: "Conversation",
    kind: "When", kinds: { every: "Every", cron: "By cron", at: "Once at", heartbeat: "Heartbeat" }, hints: { every: "For example 30m, 2h or 1d", cron: "Minute, hour, day, month, weekday: 0 9 * * 1-5", at: "For example 2027-01-01T09:00", heartbeat: "For example 30m; checks whether there is anything to do" },
    zone: "Time zone", zoneHint: "If empty: the zone of the person who gets the answers, or else the gateway's", message: "Message", messageHint: "What to ask the model. A heartbeat needs none.", to: "Send answers to", nowhere: "Nobody: only its own conversation", session: "Runs in", sessions: { job: "its own conversation", chat: "that chat's conversation" }, name: "Name",
    missedLabel: "Missed runs", missed: { once: "run once", skip: "skip", all: "run all" },
  },
  people: {
    about: "People and groups that are new to the bot get a code. Approve them here.", what: "pairing in this console", asking: "Waiting for approval", inside: "Approved", none: "Nobody is waiting", noneText: "People who write to the bot for the first time appear here.", nobody: "Nobody has been approved with a code yet.",
    approve: "Approve", approveOf: (name) => `Approve ${name}`, approved: (name) => `Approved ${name}`, refuse: "Refuse", refuseOf: (name) => `Refuse ${name}`, refused: (name) => `Refused ${name}`, revoke: "Revoke", revokeOf: (name) => `Revoke the access of ${name}`, revokeText: (name) => `${name} will not be answered any more.`, revoked: (name) => `Access of ${name} revoked`, code: "Code",
  },
  usage: {
    about: "Tokens and cost of all model calls, by day in UTC.", what: "the usage of past days", span: "Period", days: (count) => `${count} days`, turns: "Turns", calls: "Background calls (titles, summaries, memory)", prompt: "Tokens in", completion: "Tokens out", tokens: "Tokens", cost: "Cost",
    budgets: "Today's budgets", left: (left, of) => `${left} left of ${of}`, limits: { tokens_per_day: "Tokens per day", cost_per_day_usd: "Cost per day", cost_per_chat_per_day_usd: "Cost per chat and day", cost_per_person_per_day_usd: "Cost per person and day", cost_per_job_per_day_usd: "Cost per schedule and day" },
    none: "No usage in this period", noneText: "The built-in model echo costs nothing. Set model.name to use a real one.", tokensByDay: "Tokens by day", costByDay: "Cost by day", turnsByDay: "Turns by day", cap: "Daily cap", capAbove: (most) => `Daily cap: ${most}, above this chart`, tokensOf: (prompt, completion) => `${prompt} in, ${completion} out`,
    byModel: "By model", byChat: "By chat", byPerson: "By person", who: "Name", unnamed: "unnamed", more: (count) => `and ${count.toLocaleString("en")} more`,
  },
  config: {
    about: "The configuration in use. Edit the file and restart the gateway to change it.", what: "its configuration in this console", settings: "Settings", doctor: "Doctor", filter: "Filter", readOnly: "Secrets are hidden. chat-gateway config path names the file.", top: "Top level", nothing: "No setting contains these words", unset: "not set", yes: "yes", no: "no",
    doctorWhat: "the doctor in this console", summary: (fail, warn, ok) => `${plural(fail, "failure", "failures")}, ${plural(warn, "warning", "warnings")}, ${ok} fine`, incomplete: "Time ran out before the last check.", again: "Check again", levels: { ok: "ok", warn: "warn", fail: "fail" }, cure: (text) => `Try: ${text}`,
  },
  trace: {
    about: "Follow one message from arrival to answer. Logs, transcripts and parked messages show its id.", what: "the trace of messages", id: "Message id", go: "Trace", begin: "Which message?", chat: "Chat", steps: "Steps", unknownTime: "time unknown", unknown: "Unknown",
  },
};
