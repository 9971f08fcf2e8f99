// Keeps relative times counting: <time data-ago> and <time data-until> with a machine-readable datetime.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** An age in one unit, the same words as the server's: "now", "38 s", "12 min". */
function coarse(seconds) {
  for (const [size, unit] of UNITS) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return "now";
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function tick() {
  const now = Date.now();
  for (const node of document.querySelectorAll("time[data-ago]")) {
    const age = coarse((now - Date.parse(node.dateTime)) / 1000);
    write(node, node.dataset.ago && age !== "now" ? `${age} ${node.dataset.ago}` : age);
  }
  for (const node of document.querySelectorAll("time[data-until]")) {
    const seconds = (Date.parse(node.dateTime) - now) / 1000;
    write(node, seconds >= 1 ? `in ${coarse(seconds)}` : node.dataset.until);
  }
}

tick();
setInterval(() => document.hidden || tick(), 1000);
document.addEventListener("visibilitychange", () => document.hidden || tick());
document.addEventListener("htmx:afterSwap", tick);

// The zone that the browser is in, offered in the user menu when it is not the one in use.
const offer = document.querySelector("[data-browser-zone]");
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (offer && zone && !offer.form.textContent.includes(zone)) {
  offer.value = zone;
  offer.textContent = `Use ${zone}`;
  offer.hidden = false;
}
