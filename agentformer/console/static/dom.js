// Builds elements. Every text becomes a text node, so that text of a document or a model is never parsed as HTML.

import { t } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";
const PATHS = {
  ask: "M4 5h16v11H9l-5 4z",
  documents: "M6 3h8l4 4v14H6z M14 3v4h4 M9 12h6 M9 16h6",
  memory: "M12 4c4.4 0 8 1.3 8 3s-3.600 3-8 3-8-1.300-8-3 3.600-3 8-3z M4 7v10c0 1.700 3.600 3 8 3s8-1.300 8-3V7 M4 12c0 1.700 3.600 3 8 3s8-1.300 8-3",
  map: "M7 7h.01 M17 6h.01 M12 12h.01 M6 17h.01 M17 16h.01 M3 3v18h18",
  health: "M3 12h4l3-8 4 16 3-8h4",
  send: "M12 20V5 M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9z M5 15H4V4h11v1",
  close: "M6 6l12 12 M18 6L6 18",
  previous: "M15 5l-7 7 7 7",
  next: "M9 5l7 7-7 7",
  trash: "M4 7h16 M9 7V4h6v3 M6 7l1 13h10l1-13",
  upload: "M12 16V4 M7 9l5-5 5 5 M4 16v4h16v-4",
  download: "M12 4v12 M7 11l5 5 5-5 M4 20h16",
  theme: "M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z",
  key: "M12 12a4.500 4.500 0 1 0-.01 0z M11 10.500L20 19.500 M16 15.500l2.500-2.500 M18.500 18l2-2",
  more: "M12 6v.01 M12 12v.01 M12 18v.01",
  check: "M5 12l5 5L20 7",
  plus: "M12 5v14 M5 12h14",
  minus: "M5 12h14",
  whole: "M4 9V4h5 M20 9V4h-5 M4 15v5h5 M20 15v5h-5",
  renew: "M20 12a8 8 0 1 1-2.500-5.800L20 8.500 M20 4v4.500h-4.500",
  warning: "M12 4l9 16H3z M12 10v4 M12 17v.01",
};

/** Return an element. Properties `on…` are listeners. An attribute with the value false or null is left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return an SVG element. */
export function svg(tag, properties, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** Return an icon. The button or link around the icon has a name for screen readers; the icon has none. */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "icon" }, svg("path", { d: PATHS[name] }));
}

/** Return a button that shows an icon only and has `label` as its name. */
export function iconButton(name, label, onclick, properties = {}) {
  return h("button", { type: "button", class: "quiet square", "aria-label": label, title: label, onclick, ...properties }, icon(name));
}

/** Return the element that is shown instead of an empty list: a heading, a text with advice, and buttons. */
export function empty(title, text, ...actions) {
  return h("div", { class: "empty" }, h("h2", {}, title), text ? h("p", {}, text) : null, actions.length ? h("p", { class: "row" }, actions) : null);
}

/** Return an error message with a button to try again. */
export function failed(message, again) {
  return h("p", { class: "note error", role: "alert" }, message, " ", h("button", { type: "button", class: "link", onclick: again }, t("again")));
}

/** Show a short message, with an optional action, whose name for screen readers is `label`. It disappears after `seconds`, or if `seconds` is null, when `close` is called. */
export function toast(message, { action, label, onaction, seconds = 6, error = false } = {}) {
  const close = () => element.remove();
  const element = h("div", { class: error ? "toast error" : "toast" }, h("span", {}, message),
    action ? h("button", { type: "button", class: "link", "aria-label": label, onclick: () => { close(); onaction(); } }, action) : null);
  document.getElementById("toasts").append(element);
  if (seconds) setTimeout(close, seconds * 1000);
  return { close, element };
}

/** Return the name of a file, which may be broken into lines after its separators. Characters that reverse the direction, so that a name looks like another one, are left out. */
export function fileName(name, properties) {
  return h("bdi", properties, name.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "").split(/(?<=[-_./\\])/).map((part, place) => [place ? h("wbr") : null, part]));
}

/** Return the text between two positions of the server, which counts code points. */
export function slice(text, start, end) {
  return Array.from(text).slice(start, end).join("");
}

export function parted(text, start, end) {
  const points = Array.from(text);
  return [points.slice(0, start).join(""), points.slice(start, end).join(""), points.slice(end).join("")];
}

/** Open a modal dialog with a heading and a form. `onsubmit` gets the values; the dialog closes unless it returns false. */
export function dialog(title, body, { submit, cancel, danger = false, onsubmit = () => true }) {
  const error = h("p", { class: "error-text", role: "alert" });
  const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), body, error,
    h("p", { class: "row end" },
      cancel ? h("button", { type: "button", onclick: () => element.close() }, cancel) : null,
      h("button", { type: "submit", class: danger ? "danger" : "primary" }, submit)));
  const element = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => element.remove() }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      if (await onsubmit(Object.fromEntries(new FormData(form)), form) !== false) element.close();
    } catch (problem) {
      error.textContent = problem.message;
    }
  });
  document.body.append(element);
  element.showModal();
  return element;
}
