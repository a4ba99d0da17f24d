// The address behind # says what is shown: #/chats/<key>/<session>?at=12.

export function parse(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((one) => {
    try {
      return decodeURIComponent(one);
    } catch {
      return one;
    }
  });
  return { name: parts[0] || "chats", parts: parts.slice(1).filter(Boolean), query: new URLSearchParams(query) };
}

export function href(name, parts = [], query = {}) {
  const path = ["#", name, ...parts.map(encodeURIComponent)].join("/");
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "")).toString();
  return text ? `${path}?${text}` : path;
}

export function go(name, parts = [], query = {}, { replace = false } = {}) {
  const to = href(name, parts, query);
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = to;
  }
}
