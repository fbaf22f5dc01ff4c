// Keys: list, add, restrict and revoke them. Only for administrators.

import { get, list, makeKey, patch, post, remove } from "./api.js";
import { dialog, h, iconButton, toast } from "./dom.js";
import { date, t } from "./i18n.js";

const RIGHTS = ["read", "write", "admin", "metrics"];
const LIMITS = ["requests_per_minute", "max_entries", "max_bytes", "questions_per_day"]; // 0: no limit

/** Return the section of the keys, or nothing if the key of the tab may not list keys. */
export async function keys() {
  let stored;
  try { stored = await get("/api/keys"); } catch { return []; }
  const place = h("section", { class: "keys" });
  const draw = async () => {
    stored = await get("/api/keys");
    fill(place, stored, draw);
  };
  fill(place, stored, draw);
  return place;
}

function fill(place, stored, draw) {
  const add = h("button", { type: "button", onclick: () => edit(null, stored, draw) }, t("keys.add"));
  place.replaceChildren(h("div", { class: "row section-head" }, h("h3", { class: "grow" }, t("keys")), add),
    stored.keys.length ? h("ul", { class: "plain rows" }, stored.keys.map((key) => row(key, stored, draw)))
      : h("p", { class: "muted small" }, t(stored.required ? "keys.none.required" : "keys.none")));
}

function row(key, stored, draw) {
  const off = key.without.length ? t("keys.without", { n: key.without.length }) : "";
  const ends = key.expires_at ? t(new Date(key.expires_at) < new Date() ? "keys.expired" : "keys.expires", { date: date(key.expires_at, { dateStyle: "medium" }) }) : "";
  const used = key.last_used_on ? t("keys.used", { date: date(key.last_used_on, { dateStyle: "medium", timeZone: "UTC" }) }) : t("keys.unused");
  const limits = LIMITS.filter((name) => key[name]).map((name) => t(`keys.limited.${name}`, { n: key[name] })).join(", ");
  const where = key.namespaces.length ? key.namespaces.join(", ") : t("keys.everywhere");
  return h("li", { class: "row line key" }, h("div", { class: "grow key-text" },
    h("p", {}, h("bdi", { class: "line-name" }, key.name), " ", key.own ? h("span", { class: "badge" }, t("keys.own")) : null),
    h("p", { class: "muted small" }, [key.rights.map((name) => t(`right.${name}`)).join(", "), where, limits, off, ends, used].filter(Boolean).join(" · "))),
  key.own ? null : h("button", { type: "button", class: "quiet", "aria-label": t("keys.change.of", { name: key.name }), onclick: () => edit(key, stored, draw) }, t("keys.change")),
  key.own ? null : iconButton("trash", t("keys.revoke.of", { name: key.name }), () => revoke(key, draw)));
}

function check(name, value, label, on, disabled = false) {
  return h("label", { class: "row check" }, h("input", { type: "checkbox", name, value, checked: on, disabled }), h("span", {}, label));
}

/** Add a key, or change `key`. */
async function edit(key, stored, draw) {
  const first = !stored.required;
  const on = (right) => (key ? key.rights.includes(right) : first ? right === "admin" : right === "read");
  const known = (await list("/api/namespaces").catch(() => ({ namespaces: [] }))).namespaces;
  const off = new Set(key ? key.without : []);
  const body = h("div", { class: "form" },
    key ? null : h("p", { class: "muted small" }, t(first ? "keys.first" : "keys.once")),
    h("label", {}, t("keys.name"), h("input", { name: "name", required: true, maxlength: 100, value: key ? key.name : "" })),
    h("fieldset", {}, h("legend", {}, t("keys.rights")), RIGHTS.map((right) => check("rights", right, t(`right.${right}.long`), on(right), first))),
    first ? null : h("label", {}, t("keys.namespaces"), h("input", { name: "namespaces", placeholder: t("keys.everywhere"), list: "known-namespaces", value: key ? key.namespaces.join(", ") : "" }), h("span", { class: "muted small" }, t("keys.namespaces.todo"))),
    h("datalist", { id: "known-namespaces" }, known.map((name) => h("option", { value: name }))),
    first ? null : h("details", { open: off.size > 0 }, h("summary", {}, t("keys.tools")), h("div", { class: "checks" }, stored.tools.map((name) => check("tools", name, h("span", {}, h("code", {}, name), stored.destructive.includes(name) ? h("span", { class: "muted small" }, ` ${t("keys.destructive")}`) : null), !off.has(name))))),
    first ? null : h("details", { open: Boolean(key) && LIMITS.some((name) => key[name]) }, h("summary", {}, t("keys.limits")), LIMITS.map((name) => h("label", {}, t(`keys.limit.${name}`), h("input", { name, type: "number", min: 0, step: 1, placeholder: t("keys.unlimited"), value: key && key[name] ? key[name] : "" })))),
    key ? null : h("label", {}, t("keys.days"), h("input", { name: "days", type: "number", min: 1, max: 36500, placeholder: t("never") })));
  const usable = () => {
    const rights = [...body.querySelectorAll("[name=rights]:checked")].map((box) => box.value);
    for (const box of body.querySelectorAll("[name=tools]")) {
      const need = stored.needs[box.value];
      const may = rights.includes("admin") || (need === "change" ? ["read", "write"] : [need]).every((right) => rights.includes(right));
      if (may === !box.disabled) continue;
      Object.assign(box, { disabled: !may, checked: may && !off.has(box.value) });
    }
  };
  for (const box of body.querySelectorAll("[name=rights]")) box.addEventListener("change", usable);
  usable();
  dialog(t(key ? "keys.change" : "keys.add"), body, {
    submit: t(key ? "save" : "keys.add"), cancel: t("cancel"),
    onsubmit: async (values, form) => {
      const data = new FormData(form);
      const rights = first ? ["admin"] : data.getAll("rights");
      if (!rights.length) throw new Error(t("keys.rights.none"));
      const namespaces = (values.namespaces || "").split(",").map((name) => name.trim()).filter(Boolean);
      const without = [...body.querySelectorAll("[name=tools]")].filter((box) => (box.disabled ? off.has(box.value) : !box.checked)).map((box) => box.value);
      const limits = first ? {} : Object.fromEntries(LIMITS.map((name) => [name, Number(values[name] || 0)]));
      const wanted = { name: values.name.trim(), rights, namespaces, without, ...limits };
      if (key) { await patch(`/api/keys/${key.id}`, wanted); toast(t("saved")); await draw(); return; }
      const full = { ...wanted, ...(values.days ? { days: Number(values.days) } : {}) };
      const made = await (first ? makeKey(full) : post("/api/keys", full)); // once the first key exists, every request needs a key
      reveal(made, first);
      await draw().catch(() => {});
    },
  });
}

/** Show the text of a new key, which the server does not store. */
function reveal(made, first) {
  const field = h("input", { readonly: true, value: made.key, class: "secret", "aria-label": t("keys.text") });
  const copy = h("button", { type: "button", onclick: async () => { try { await navigator.clipboard.writeText(made.key); copy.textContent = t("keys.copied"); } catch { field.select(); } } }, t("keys.copy"));
  dialog(t("keys.made", { name: made.name }), h("div", { class: "form" }, h("p", {}, t("keys.shown.once")), h("p", { class: "row" }, field, copy), first ? h("p", { class: "muted small" }, t("keys.in.use")) : null), { submit: t("keys.stored") });
  field.select();
}

function revoke(key, draw) {
  dialog(t("keys.revoke"), h("p", {}, t("keys.revoke.text", { name: key.name })), {
    submit: t("keys.revoke"), cancel: t("cancel"), danger: true,
    onsubmit: async () => { await remove(`/api/keys/${key.id}`); toast(t("keys.revoked", { name: key.name })); await draw(); },
  });
}

