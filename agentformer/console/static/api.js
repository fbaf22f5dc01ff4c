// Requests to the server. If the server requires a key, the page asks the person for it, and stores it for this tab only.

import { dialog, h } from "./dom.js";
import { t } from "./i18n.js";

export const root = document.documentElement.dataset.root;
const KEY = "agentformer.key";
let asking = null;
let about = null; // a promise of the rights and the namespaces of the key of the tab
let refused = false; // true if the person gave no key, although the server requires a key

/** Return true while the server requires a key and the person has given none. Then the page sends no further requests by itself. */
export const keyMissing = () => refused || asking !== null;

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || t("error.status", { status }));
    this.status = status;
    this.body = body;
    this.kind = (body.type || "").split(":").pop(); // the same in all languages, such as "too-large"
  }
}

export const namespace = {
  get: () => sessionStorage.getItem("agentformer.namespace") || null,
  set: (name) => (name ? sessionStorage.setItem("agentformer.namespace", name) : sessionStorage.removeItem("agentformer.namespace")),
};

export const hasKey = () => Boolean(sessionStorage.getItem(KEY));

export function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/** Ask the person for a key. Return true if a key was given. */
export function askForKey(reason) {
  asking ??= new Promise((done) => {
    let given = false;
    const input = h("input", { name: "key", type: "password", autocomplete: "off", required: true, autofocus: true, placeholder: "af_…" });
    const body = h("div", {}, h("p", {}, reason || t("key.why")), h("label", {}, t("key.label"), input));
    const element = dialog(t("key.title"), body, {
      submit: t("key.use"), cancel: t("cancel"),
      onsubmit: (values) => { given = true; useKey(values.key.trim()); },
    });
    element.addEventListener("close", () => { asking = null; done(given); });
  });
  return asking;
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
  about = null;
  refused = false;
  dispatchEvent(new Event("agentformer:key"));
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
  about = null;
  dispatchEvent(new Event("agentformer:key"));
}

/** Add a key, and use it in this tab from then on. Requests that are refused in the meantime wait for the key, and do not ask for one. */
export function makeKey(body) {
  const making = post("/api/keys", body).then((made) => { useKey(made.key); return made; });
  asking = making.then(() => true, () => false).finally(() => { asking = null; });
  return making;
}

/** Send a request and return the response. Ask for a key on 401. Raises `Problem`. */
export async function send(method, path, { body, query, accept, prefer, match, signal } = {}) {
  const url = new URL(root + path, location.origin);
  for (const [name, value] of Object.entries(query || {})) {
    for (const item of [value].flat()) if (item !== null && item !== undefined && item !== "") url.searchParams.append(name, item);
  }
  const form = body instanceof FormData;
  const more = {
    ...(body && !form ? { "Content-Type": "application/json" } : {}), ...(accept ? { Accept: accept } : {}),
    ...(prefer ? { Prefer: prefer } : {}), ...(match ? { "If-Match": match } : {}),
  };
  if (asking) await asking;
  const sent = sessionStorage.getItem(KEY);
  let response;
  try {
    response = await fetch(url, { method, headers: headers(more), body: form || !body ? body : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: t("error.offline") });
  }
  if (response.status === 401) {
    const changed = sessionStorage.getItem(KEY) !== sent; // the person gave a key during the request
    refused = !changed && !(await askForKey(hasKey() ? (await problem(response.clone())).message : ""));
    if (!refused) return send(method, path, { body, query, accept, prefer, match, signal });
  }
  if (!response.ok) throw await problem(response);
  return response;
}

async function problem(response) {
  let body = {};
  try { body = await response.json(); } catch { /* the response is not a problem document */ }
  return new Problem(response.status, body);
}

async function json(response) {
  return response.status === 204 ? null : response.json();
}

export const within = (values) => (namespace.get() ? { namespace: namespace.get(), ...values } : values);
export const get = async (path, query, options) => json(await send("GET", path, { query, ...options }));
export const list = (path, query, options) => get(path, within(query), options);
export const post = async (path, body = {}, options) => json(await send("POST", path, { body, ...options }));
export const postWithin = (path, body, options) => post(path, within(body), options);
export const patch = async (path, body, options) => json(await send("PATCH", path, { body, ...options }));
export const remove = async (path, query) => json(await send("DELETE", path, { query }));

/** Return the namespaces and the rights of the key of the tab. */
export const caller = () => (about ??= get("/api/namespaces").catch((error) => { about = null; throw error; }));

/** Return whether the key of the tab may add and delete. The page hides what the key may not do; the server checks the rights. */
export async function mayChange() {
  const { rights } = await caller().catch(() => ({ rights: ["admin"] }));
  return rights.includes("admin") || (rights.includes("read") && rights.includes("write"));
}

/** Return all items of a list that the server sends in pages. `onpage` is called after each page with the items so far. */
export async function all(path, name, query = {}, onpage = () => {}, most = 20000) {
  const items = [];
  for (let after = ""; after !== null && items.length < most;) {
    const page = await list(path, { limit: 200, ...query, after });
    items.push(...page[name]);
    after = page.next;
    onpage(items);
  }
  return items;
}

/** Call `onevent(name, data)` for each server-sent event. EventSource cannot send a key, so the stream is read here. */
export async function events(method, path, { body, signal, onevent }) {
  const response = await send(method, path, { body, signal, accept: "text/event-stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let buffer = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const name = /^event: (.*)$/m.exec(block);
      const data = /^data: (.*)$/m.exec(block);
      if (name && data) onevent(name[1], JSON.parse(data[1]));
    }
  }
}
