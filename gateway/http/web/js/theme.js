// Sets the colours before anything is painted; the switch in the page writes the same name.
let chosen = null;
try {
  chosen = JSON.parse(localStorage.getItem("chat-gateway.theme"));
} catch {
  // a forbidden storage: the system's colours
}
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
