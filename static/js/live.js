// Keeps the page current: a stream of server-sent events says what changed, the page fetches itself again and is
// morphed in place. Falls back to polling. Waits while the page is hidden, a menu or dialog is open or text is selected.

const BEAT_LATE = 16000; // no event for so long: the stream is dead, whatever the browser thinks
const POLL_EVERY = 5000;
const SETTLE = 150; // changes that come together are fetched together
const GAP_TOO_LONG = 600000; // after so long without contact everything is looked at again
const RETRY_STREAM = 30000; // while polling, the stream is tried again

const button = document.querySelector("[data-live]");
const word = document.querySelector("[data-live-word]");
const page = () => document.querySelector("[data-page]");

let cursor = page()?.dataset.cursor;
let contactAt = Date.now(); // last time at which the page was known to be current
let stream = null;
let polling = 0;
let etag = "";
let isPaused = false;
let isDirty = false; // a change waits to be fetched
let isFetching = false;
let fetchTook = 0;
let lastFetch = 0;
let timer = 0;
let isOut = false; // the session has ended

/** Whether a change is shown on this page: topics are "incident" (all of them) or "incident:12" (one). The key "*" may be any. */
function concerns([topic, key]) {
  const topics = (page().dataset.topics || "").split(" ");
  return topics.includes(topic) || topics.includes(`${topic}:${key}`) || (key === "*" && topics.some((one) => one.startsWith(`${topic}:`)));
}

/** Why the page must not change under the reader's hands; empty when it may. */
function busyWith() {
  if (document.querySelector("dialog[open], details[data-menu][open]")) return "a menu is open";
  const selected = getSelection();
  if (selected && !selected.isCollapsed && page()?.contains(selected.anchorNode)) return "text is selected";
  return "";
}

function refresh() {
  clearTimeout(timer);
  if (!isDirty || isFetching || isPaused || document.hidden || isOut || busyWith()) return;
  // A slow answer (a storm) makes the page ask less often, so that it stays usable.
  const wait = lastFetch + Math.max(SETTLE, 3 * fetchTook) - Date.now();
  if (wait > 0) {
    timer = setTimeout(refresh, wait);
    return;
  }
  isDirty = false;
  isFetching = true;
  lastFetch = Date.now();
  window.htmx.trigger(page(), "desk:refresh");
}

function changed() {
  isDirty = true;
  clearTimeout(timer);
  timer = setTimeout(refresh, SETTLE);
}

function heard(newCursor) {
  contactAt = Date.now();
  if (newCursor) cursor = newCursor;
  show();
}

// The stream.

function openStream() {
  closeStream();
  stream = new EventSource(`/live/?cursor=${encodeURIComponent(cursor)}`);
  const gap = Date.now() - contactAt > GAP_TOO_LONG;
  stream.addEventListener("open", () => {
    stopPolling();
    if (gap) changed();
  });
  stream.addEventListener("beat", (event) => heard(event.lastEventId));
  stream.addEventListener("change", (event) => {
    heard(event.lastEventId);
    if (JSON.parse(event.data).changes.some(concerns)) changed();
  });
  stream.addEventListener("reload", (event) => {
    heard(event.lastEventId);
    changed();
  });
  stream.addEventListener("error", () => {
    closeStream(); // reopened below, with our own cursor and pace
    startPolling();
  });
}

function closeStream() {
  stream?.close();
  stream = null;
}

// Polling.

let streamTriedAt = 0;

function startPolling() {
  if (polling || document.hidden || isOut) return;
  streamTriedAt = Date.now();
  polling = setInterval(poll, POLL_EVERY);
  poll();
}

function stopPolling() {
  clearInterval(polling);
  polling = 0;
}

async function poll() {
  if (document.hidden || isPaused) return;
  try {
    const answer = await fetch(`/changes/?cursor=${encodeURIComponent(cursor)}`, {
      headers: { "HX-Request": "true", ...(etag && { "If-None-Match": etag }) },
      cache: "no-store",
    });
    if (answer.status === 401) return loggedOut();
    if (answer.status === 200) {
      const found = await answer.json();
      if (found.changes.some(concerns)) changed();
      heard(found.cursor);
    } else if (answer.status === 304) heard();
    etag = answer.headers.get("ETag") || etag;
    // The desk answers, so the stream may work again; a page that never had one tries less often.
    if (answer.ok || answer.status === 304) {
      if (Date.now() - streamTriedAt > (hadStream ? 2000 : RETRY_STREAM)) {
        streamTriedAt = Date.now();
        openStream();
      }
    }
  } catch {
    // No answer: "updated … ago" grows, which is the truth.
  }
  show();
}

let hadStream = false;

/** Say it once, and again to whoever sends something. */
function loggedOut(consequence = "this page stands still") {
  if (isOut && consequence === "this page stands still") return;
  isOut = true;
  closeStream();
  stopPolling();
  show();
  const link = { href: location.pathname + location.search, text: "Log in" };
  document.dispatchEvent(new CustomEvent("desk:message", { detail: { text: `Your session has ended, ${consequence}.`, kind: "error", link } }));
}

// What the reader is told.

function show() {
  if (!button) return;
  const seconds = Math.floor((Date.now() - contactAt) / 1000);
  const age = seconds < 60 ? `${seconds} s` : seconds < 3600 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
  const held = busyWith();
  let state = stream && stream.readyState === EventSource.OPEN ? "live" : polling ? "polling" : "late";
  if (state === "live") hadStream = true;
  if (seconds > BEAT_LATE / 1000) state = "late";
  let text = seconds < 1 ? "updated now" : `updated ${age} ago`;
  if (isOut) [state, text] = ["late", "logged out"];
  else if (isPaused) [state, text] = ["paused", `paused, ${age} old`];
  else if (held && isDirty) [state, text] = ["paused", "waits: " + held];
  else if (state === "late") text = `not updated for ${age}`;
  if (button.dataset.state !== state) button.dataset.state = state;
  if (word.textContent !== text) word.textContent = text;
  button.dataset.short = isOut ? "logged out" : isPaused ? "paused" : seconds < 1 ? "now" : age; // where there is no room
}

function start() {
  if (document.hidden || isPaused || isOut || !page()) return;
  openStream();
  if (isDirty) refresh();
}

function stop() {
  closeStream();
  stopPolling();
}

if (page() && cursor) {
  start();
  setInterval(() => {
    if (document.hidden) return;
    if (stream && Date.now() - contactAt > BEAT_LATE) {
      closeStream();
      startPolling();
    }
    // Some figures change without a message (steps, lag): the page says how often it wants to look.
    const every = Number(page().dataset.refresh) * 1000;
    if (every && Date.now() - lastFetch > every) isDirty = true;
    refresh();
    show();
  }, 1000);
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    isDirty = true;
    start();
  });
  button?.addEventListener("click", () => {
    isPaused = !isPaused;
    if (isPaused) stop();
    else {
      isDirty = true;
      start();
      refresh();
    }
    button.setAttribute("aria-pressed", String(isPaused));
    show();
  });
  document.addEventListener("selectionchange", () => isDirty && refresh());
  document.addEventListener("close", () => isDirty && setTimeout(refresh), true);
}

// Fetching and morphing.

// What somebody types into, or has typed and not sent, is left alone. (Idiomorph's ignoreActiveValue would leave out all
// that is inside a focused element.)
window.Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) =>
  !(/^(input|textarea)$/.test(node.localName) && (node === document.activeElement || node.value !== node.defaultValue)) &&
  !(node.localName === "select" && node === document.activeElement);
window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node, kind) => {
  // What the reader has unfolded stays unfolded, and what the keyboard points at stays so.
  if (name === "open" && node.localName === "details") return false;
  if (name === "class" && kind === "update" && node.classList?.contains("is-current")) return false;
  return true;
};

document.addEventListener("htmx:configRequest", (event) => {
  const { detail } = event;
  if (detail.verb !== "get" || detail.elt !== page()) return;
  // An open list keeps its rows in their places: it asks for those, and is told how many are new.
  const rows = [...document.querySelectorAll("[data-hold] [data-row]")].map((row) => row.dataset.row).filter(Boolean);
  if (rows.length) detail.parameters.held = rows.join(",");
});
document.addEventListener("htmx:beforeSwap", (event) => {
  // Something was opened or selected while the answer was on its way: look again afterwards.
  if (event.detail.requestConfig?.elt === page() && event.detail.requestConfig.verb === "get" && busyWith()) {
    event.detail.shouldSwap = false;
    isDirty = true;
  }
});
document.addEventListener("htmx:afterRequest", (event) => {
  const { requestConfig, successful, xhr } = event.detail;
  if (requestConfig?.verb === "get" && isFetching) {
    isFetching = false;
    fetchTook = Date.now() - lastFetch;
    if (!successful) isDirty = true;
  }
  if (xhr?.status === 401) return loggedOut(requestConfig.verb === "get" ? undefined : "nothing was done");
  if (successful && page()) {
    contactAt = Date.now();
    if (!stream && !polling) cursor = page().dataset.cursor;
  }
  show();
});
