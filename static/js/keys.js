// The one registry of keys: what they do, and what the sheet says. Ignored while somebody types; can be turned off.

const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null || row.getClientRects().length);
const current = () => document.querySelector("[data-row].is-current");

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step))];
  current()?.classList.remove("is-current");
  next.classList.add("is-current");
  next.querySelector("[data-row-link]")?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

/** Press the button or link for a key: in the current row, else on the page. */
function press(key) {
  const target = current()?.querySelector(`[data-key="${key}"]`) || document.querySelector(`[data-key="${key}"]:not([data-row] *)`);
  target?.click();
  return Boolean(target);
}

function go(name) {
  const links = [...document.querySelectorAll(".topbar__nav a")];
  links.find((link) => link.textContent.trim() === name)?.click();
}

const KEYS = [
  { keys: "/", label: "Search", run: () => document.querySelector('[data-key-target="search"]')?.select() || document.querySelector('[data-key-target="search"]')?.focus() },
  { keys: "j", label: "Next row", run: () => move(1) },
  { keys: "k", label: "Row before", run: () => move(-1) },
  { keys: "Enter", label: "Open the row", run: () => (current()?.contains(document.activeElement) || !current() ? false : (current().querySelector("[data-row-link]")?.click(), true)) },
  { keys: "a", label: "Acknowledge", run: () => press("a") },
  { keys: "r", label: "Resolve", run: () => press("r") },
  { keys: "g o", label: "Go to the overview", run: () => go("Overview") },
  { keys: "g i", label: "Go to incidents", run: () => go("Incidents") },
  { keys: "g j", label: "Go to jobs", run: () => go("Jobs") },
  { keys: "g n", label: "Go to nodes", run: () => go("Nodes") },
  { keys: "?", label: "This sheet", run: () => document.getElementById("keys-sheet")?.showModal() },
];

const list = document.querySelector("[data-keys-list]");
for (const { keys, label } of KEYS) {
  const term = document.createElement("dt");
  for (const key of keys.split(" ")) {
    const cap = document.createElement("kbd");
    cap.textContent = key;
    term.append(cap, " ");
  }
  const meaning = document.createElement("dd");
  meaning.textContent = label;
  list?.append(term, meaning);
}

const isOn = document.body.dataset.singleKeys === "on";
let first = "";
let forget = 0;

document.addEventListener("keydown", (event) => {
  if (!isOn || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
  const target = event.target;
  if (target.isContentEditable || /^(input|textarea|select)$/i.test(target.localName)) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const typed = first ? `${first} ${event.key}` : event.key;
  const known = KEYS.find(({ keys }) => keys === typed);
  clearTimeout(forget);
  first = "";
  if (known) {
    if (known.run() !== false) event.preventDefault();
  } else if (KEYS.some(({ keys }) => keys.startsWith(`${typed} `))) {
    first = typed;
    forget = setTimeout(() => (first = ""), 1200);
  }
});
