// Dialogs (data-open="id", data-close), menus that close by themselves, and messages that stay while the page changes.

function dialogOf(opener) {
  return document.getElementById(opener.dataset.open);
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open]");
  if (opener && dialogOf(opener)) {
    event.preventDefault();
    opener.closest("details[data-menu]")?.removeAttribute("open");
    const dialog = dialogOf(opener);
    dialog.removeAttribute("open"); // one that the server opened is not modal
    dialog.showModal();
  }
  const closer = event.target.closest("[data-close]");
  if (closer?.closest("dialog:modal")) {
    event.preventDefault();
    closer.closest("dialog").close();
  }
  if (event.target.matches("dialog:modal")) event.target.close(); // its backdrop
  for (const menu of document.querySelectorAll("details[data-menu][open]"))
    if (!menu.contains(event.target)) menu.removeAttribute("open");
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = document.querySelector("details[data-menu][open]");
  if (!menu) return;
  menu.removeAttribute("open");
  menu.querySelector("summary").focus();
});

// A dialog whose form was answered is done; the answer is the new page. (What only looks again leaves it alone, see live.js.)
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.shouldSwap && event.detail.requestConfig.verb !== "get") document.querySelectorAll("#page dialog:modal").forEach((dialog) => dialog.close());
});

// Messages move out of the page, so that the next refresh does not take them away.
const toasts = document.querySelector("[data-toasts]");

/** Show a message; kind is success, info, warning or error. Errors stay until they are closed. A link leads on from it. */
function toast(text, kind, link) {
  const item = document.createElement("li");
  item.className = `is-${kind}`;
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "✕";
  close.setAttribute("aria-label", "Close the message");
  close.addEventListener("click", () => item.remove());
  if (link) words.append(" ", Object.assign(document.createElement("a"), { href: link.href, textContent: link.text }));
  item.append(words, close);
  toasts.append(item);
  if (kind === "success" || kind === "info") setTimeout(() => item.remove(), 8000);
}

function collect() {
  for (const list of document.querySelectorAll("[data-messages]")) {
    for (const item of list.children) toast(item.textContent, item.className.replace("is-", ""));
    list.remove();
  }
}

collect();
document.addEventListener("htmx:afterSwap", collect);
document.addEventListener("desk:message", (event) => toast(event.detail.text, event.detail.kind, event.detail.link));
document.addEventListener("htmx:responseError", (event) => {
  const { xhr, requestConfig } = event.detail;
  if (xhr.status === 401 || (requestConfig.verb === "get" && xhr.status >= 500)) return; // live.js tells
  toast(heading(xhr), "error");
});

function heading(xhr) {
  const page = new DOMParser().parseFromString(xhr.responseText, "text/html");
  const words = [...page.querySelectorAll("main h1, main .plainpage p")].slice(0, 2).map((node) => node.textContent.trim());
  return words.join(": ") || `The desk answered ${xhr.status}. Nothing was done.`;
}
