// The frame of the page: navigation, language, colours, and the view that the URL names.

import { askForKey, caller, forgetKey, hasKey, namespace } from "./api.js";
import { failed, h, icon, iconButton, toast } from "./dom.js";
import { LANGUAGES, choose, language, t } from "./i18n.js";
import { closePanel } from "./source.js";

const VIEWS = ["ask", "documents", "memory", "map", "health"];
const main = document.getElementById("main");
const loaded = {}; // the modules of views; a browser may cache a failed import, so the next attempt uses another address
let [leave, attempts, showing] = [() => {}, 0, 0];

async function module(name) {
  try { return (loaded[name] ??= await import(`./${name}.js${attempts ? `?${attempts}` : ""}`)); } catch { attempts += 1; throw new Error(t("error.offline")); }
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem("agentformer.theme", dark ? "light" : "dark");
  theme(dark ? "light" : "dark");
}

async function switchKey() {
  if (hasKey()) { forgetKey(); toast(t("key.forgotten")); return; }
  if (await askForKey(t("key.ask"))) show();
}

function frame() {
  const links = VIEWS.map((name) => h("li", {}, h("a", { href: `#/${name}`, "data-view": name, onclick: () => { if (current()[0] === name) show(); } },
    icon(name), h("span", {}, t(`nav.${name}`)))));
  const languages = h("select", { "aria-label": t("language"), onchange: (event) => choose(event.target.value) },
    Object.entries(LANGUAGES).map(([name, label]) => h("option", { value: name, lang: name, selected: name === language }, label)));
  document.getElementById("skip").textContent = t("skip");
  document.getElementById("side").replaceChildren(
    h("p", { class: "brand" }, h("span", { class: "mark", "aria-hidden": "true" }, "A"), h("span", {}, "AgentFormer")),
    h("nav", { "aria-label": t("nav") }, h("ul", {}, links)),
    h("div", { id: "recent" }),
    h("div", { class: "tools" },
      h("div", { id: "namespaces" }),
      h("div", { class: "row" }, languages, iconButton("theme", t("theme"), switchTheme), h("span", { id: "key" }))));
  mark();
  withKey();
  module("ask").then((ask) => ask.recent(), () => {});
}

/** Draw the parts that depend on the key: the button of the key, and the namespaces that the key may use. */
function withKey() {
  document.getElementById("key").replaceChildren(iconButton("key", t(hasKey() ? "key.forget" : "key.title"), switchKey, { "aria-pressed": String(hasKey()) }));
  namespaces();
}

async function namespaces() {
  let names;
  try { names = (await caller()).namespaces; } catch { return; }
  if (names.length < 2 && !namespace.get()) return;
  const select = h("select", { "aria-label": t("namespace"), onchange: (event) => { namespace.set(event.target.value); show(); } },
    [...new Set(["default", ...names])].map((name) => h("option", { value: name, selected: name === (namespace.get() || "default") }, name)));
  document.getElementById("namespaces").replaceChildren(h("label", { class: "small" }, t("namespace"), select));
}

function current() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return [VIEWS.includes(name) ? name : "ask", rest.map(decodeURIComponent)];
}

function mark() {
  for (const link of document.querySelectorAll("#side nav a")) {
    if (link.dataset.view === current()[0]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function show() {
  const [name, rest] = current();
  leave();
  leave = () => {};
  closePanel();
  mark();
  document.title = `${t(`nav.${name}`)} · AgentFormer`;
  const mine = (showing += 1);
  try {
    const view = await module(name);
    if (mine !== showing) return;
    main.className = `view-${name}`;
    main.replaceChildren();
    const left = (await view.show(main, rest)) || (() => {});
    if (mine === showing) leave = left; else left();
  } catch (error) {
    if (mine !== showing) return;
    main.className = `view-${name}`;
    main.replaceChildren(h("header", { class: "view-head" }, h("h1", {}, t(`nav.${name}`))), failed(error.message, show));
  }
}

theme(localStorage.getItem("agentformer.theme"));
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); });
addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, dialog, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const field = main.querySelector("[data-main-field]");
    if (field) { event.preventDefault(); field.focus(); }
  }
});
addEventListener("agentformer:key", withKey);
frame();
show();
