// Memory: search with the reasons for each rank, sessions with their summaries, facts, profiles of users, and core blocks.

import { all, list, namespace, post, postWithin } from "./api.js";
import { dialog, empty, h, icon, toast } from "./dom.js";
import { found, line, look, openEntry, rows, when } from "./entry.js";
import { date, t } from "./i18n.js";

const TABS = ["search", "sessions", "known", "profile", "core"];
const KNOWN_TIERS = ["semantic", "episodic", "working"];
const PAGE = 100;
let body;
let leave = () => {};

export async function show(main, [tab = "search", id]) {
  const name = TABS.includes(tab) ? tab : "search";
  const links = TABS.map((item) => h("a", { href: `#/memory/${item}`, "aria-current": item === name ? "page" : null }, t(`memory.${item}`)));
  body = h("div", { class: "memory" });
  main.append(h("header", { class: "view-head" }, h("h1", {}, t("nav.memory"))), h("nav", { class: "tabs", "aria-label": t("nav.memory") }, links), body);
  await { search, sessions, known, profile, core }[name](id);
  return () => { leave(); leave = () => {}; };
}

// Search

async function search() {
  const field = h("input", { type: "search", name: "text", "data-main-field": true, required: true, "aria-label": t("memory.search.label"), placeholder: t("memory.search.label") });
  const old = h("input", { type: "checkbox", name: "old", id: "old" });
  const results = h("div", { "aria-live": "polite" }, empty(t("memory.search.empty"), t("memory.search.todo")));
  const form = h("form", {
    class: "row search", onsubmit: async (event) => {
      event.preventDefault();
      results.setAttribute("aria-busy", "true");
      try {
        const { hits, warnings } = await postWithin("/api/memory/search", { text: field.value, limit: 20, include_archived: old.checked });
        results.replaceChildren(...warnings.map((text) => h("p", { class: "note warn" }, text)),
          hits.length ? rows(hits, (hit) => found(hit, () => form.requestSubmit())) : empty(t("memory.search.none"), t("ask.none.todo")));
      } catch (error) { results.replaceChildren(h("p", { class: "note error", role: "alert" }, error.message)); }
      results.removeAttribute("aria-busy");
    },
  }, field, h("button", { type: "submit", class: "primary" }, t("memory.search")));
  body.append(form, h("p", { class: "row small" }, old, h("label", { for: "old" }, t("memory.search.old"))), results);
  if (matchMedia("(min-width: 800px)").matches) field.focus();
}

// Sessions

async function sessions(id) {
  if (id) return session(id);
  const place = h("div", {}, h("p", { class: "muted" }, t("loading")));
  body.append(place);
  const groups = new Map();
  let seen = 0;
  const draw = () => {
    const sorted = [...groups.values()].sort((a, b) => (a.last < b.last ? 1 : -1));
    leave();
    place.replaceChildren(sorted.length ? more(sorted, (group) => h("li", { class: "row line" }, h("a", { class: "line-main", href: `#/memory/sessions/${encodeURIComponent(group.id)}` },
      h("bdi", { class: "line-name" }, group.id), h("span", { class: "muted small" }, [t("messages", { n: group.messages }), group.summaries ? t("summaries", { n: group.summaries }) : "", date(group.last)].filter(Boolean).join(" · ")))))
      : empty(t("memory.sessions.none"), t("memory.sessions.todo")));
  };
  await all("/api/memory", "entries", { kind: ["message", "summary"], include_archived: true }, (entries) => {
    for (const entry of entries.slice(seen)) {
      if (!entry.session_id) continue;
      const group = groups.get(entry.session_id) || { id: entry.session_id, messages: 0, summaries: 0, last: "" };
      group[entry.kind === "message" ? "messages" : "summaries"] += entry.kind === "summary" && entry.archived_at ? 0 : 1;
      group.last = [group.last, entry.occurred_at || entry.created_at].sort()[1];
      groups.set(entry.session_id, group);
    }
    if (!seen && groups.size) draw(); // the first page is drawn at once, and the other pages later
    seen = entries.length;
  });
  draw();
}

/** Return a list that draws further items when the person scrolls to its end. */
function more(items, make, element = h("ul", { class: "plain rows" })) {
  const rest = items.slice(PAGE);
  element.append(...items.slice(0, PAGE).map(make));
  if (!rest.length) return element;
  const end = h("p", { class: "muted center" }, t("loading"));
  const watch = new IntersectionObserver((seen) => {
    if (!seen.some((entry) => entry.isIntersecting)) return;
    element.append(...rest.splice(0, PAGE).map(make));
    if (!rest.length) { watch.disconnect(); end.remove(); } else { watch.unobserve(end); watch.observe(end); }
  }, { rootMargin: "800px" });
  watch.observe(end);
  leave = () => watch.disconnect();
  return h("div", {}, element, end);
}

async function session(id) {
  const [{ messages }, summaries] = await Promise.all([list("/api/memory/messages", { session_id: id }), all("/api/memory", "entries", { kind: "summary", session_id: id })]);
  const covered = new Map();
  for (const summary of summaries) for (const link of summary.derived_from) covered.set(link.id, summary);
  const clean = h("button", { type: "button", onclick: async () => {
    clean.disabled = true;
    try {
      const report = await postWithin("/api/memory/clean", { session_id: id });
      toast(report.summaries.length ? t("memory.cleaned", { n: report.archived }) : t("memory.clean.nothing"));
      body.replaceChildren();
      await session(id);
    } catch (error) { toast(error.message, { error: true }); clean.disabled = false; }
  } }, t("memory.clean"));
  const originals = new Map();
  for (const message of messages) if (covered.has(message.id)) originals.set(covered.get(message.id).id, [...(originals.get(covered.get(message.id).id) || []), message]);
  const items = messages.filter((message) => !covered.has(message.id) || originals.get(covered.get(message.id).id)[0] === message);
  const timeline = more(items, (message) => {
    const summary = covered.get(message.id);
    return summary ? folded(summary, originals.get(summary.id), id)
      : h("li", { class: `message ${message.role || ""}` }, h("p", { class: "muted small" }, when(message)), h("p", { class: "text" }, message.content));
  }, h("ol", { class: "plain timeline" }));
  body.append(h("div", { class: "row session-head" }, h("a", { href: "#/memory/sessions", class: "row tight" }, icon("previous"), t("memory.sessions")), h("h2", { class: "grow" }, h("bdi", {}, id)), clean), timeline);
}

function folded(summary, originals, id) {
  const restore = h("button", { type: "button", onclick: async () => {
    restore.disabled = true;
    try {
      const { entries } = await post("/api/memory/restore", { summary_id: summary.id });
      toast(t("memory.restored", { n: entries.length }));
      body.replaceChildren();
      await session(id);
    } catch (error) { toast(error.message, { error: true }); restore.disabled = false; }
  } }, t("memory.restore"));
  return h("li", { class: "summary-item" }, h("p", { class: "row" }, h("span", { class: "badge pending" }, t("kind.summary")), h("span", { class: "muted small grow" }, t("memory.of.messages", { n: originals.length })), restore),
    h("p", { class: "text" }, summary.content),
    h("details", {}, h("summary", {}, t("originals")), h("ol", { class: "plain" }, originals.map((message) => h("li", { class: "message" }, h("p", { class: "muted small" }, when(message)), h("p", { class: "text" }, message.content))))));
}

// Facts, decisions and preferences

async function known() {
  const old = h("input", { type: "checkbox", id: "old", onchange: () => load() });
  const tier = h("select", { "aria-label": t("memory.tier"), onchange: () => load() }, h("option", { value: "" }, t("memory.tier.all")), KNOWN_TIERS.map((name) => h("option", { value: name }, t(`tier.${name}`))));
  const kind = h("input", { type: "search", "data-main-field": true, "aria-label": t("memory.filter"), placeholder: t("memory.filter"), oninput: () => draw() });
  const place = h("div", {});
  let entries = [];
  let loads = 0;
  const draw = () => {
    const wanted = kind.value.trim().toLocaleLowerCase();
    const shown = wanted ? entries.filter((entry) => `${entry.title} ${entry.content} ${entry.kind}`.toLocaleLowerCase().includes(wanted)) : entries;
    leave();
    place.replaceChildren(shown.length ? more(shown, (entry) => line(entry, load)) : empty(t(wanted ? "documents.no.match" : "memory.known.none"), t(wanted ? "documents.no.match.todo" : "memory.known.todo")));
  };
  const load = async () => {
    const where = JSON.stringify({ type: "nin", key: "$kind", value: ["chunk", "page", "document", "message"] });
    const mine = (loads += 1);
    const found = await all("/api/memory", "entries", { tier: tier.value || KNOWN_TIERS, include_archived: old.checked, where }, (items) => { if (mine === loads && items.length <= 200) { entries = [...items].reverse(); draw(); } });
    if (mine !== loads) return;
    entries = found.reverse();
    draw();
  };
  const add = h("button", { type: "button", class: "primary", onclick: () => dialog(t("memory.add"), h("label", {}, t("memory.text"), h("textarea", { name: "content", rows: 4, required: true })), {
    submit: t("memory.add"), cancel: t("cancel"), onsubmit: async ({ content }) => { await postWithin("/api/memory", { content }); await load(); },
  }) }, t("memory.add"));
  body.append(h("div", { class: "row filter" }, kind, tier, h("span", { class: "grow" }), add), h("p", { class: "row small" }, old, h("label", { for: "old" }, t("memory.search.old"))), place);
  await load();
}

// What holds now about a user

async function profile(user = "") {
  const field = h("input", { name: "user", required: true, value: user, "data-main-field": true, "aria-label": t("profile.user"), placeholder: t("profile.user") });
  const place = h("div", { "aria-live": "polite" }, empty(t("profile.empty"), t("profile.todo")));
  const load = async () => {
    const { groups } = await list("/api/memory/profile", { user_id: field.value });
    const ids = groups.flatMap((group) => group.items.map((item) => item.id));
    const entries = new Map((ids.length ? await look(ids, namespace.get()) : []).map((entry) => [entry.id, entry]));
    place.replaceChildren(...groups.map((group) => h("section", {}, h("h2", {}, t(`profile.${group.name}`)),
      rows(group.items.filter((item) => entries.has(item.id)), (item) => line(entries.get(item.id), load)))));
    if (!groups.length) place.append(empty(t("profile.none"), t("profile.todo")));
  };
  const form = h("form", { class: "row filter", onsubmit: async (event) => {
    event.preventDefault();
    try { await load(); } catch (error) { toast(error.message, { error: true }); }
  } }, field, h("button", { type: "submit", class: "primary" }, t("profile.show")));
  body.append(h("p", { class: "muted lead" }, t("profile.about")), form, place);
  if (user) await load();
}

// Core blocks

async function core() {
  const { blocks } = await list("/api/memory/core");
  const form = h("form", { class: "row filter", onsubmit: async (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form));
    try { await postWithin(`/api/memory/core/${encodeURIComponent(values.name)}/append`, { text: values.text }); body.replaceChildren(); await core(); } catch (error) { toast(error.message, { error: true }); }
  } }, h("input", { name: "name", required: true, "aria-label": t("core.name"), placeholder: t("core.name"), list: "blocks" }), h("input", { name: "text", required: true, "aria-label": t("core.line"), placeholder: t("core.line") }), h("button", { type: "submit", class: "primary" }, t("core.append")));
  body.append(h("p", { class: "muted lead" }, t("core.about")), form, blocks.length ? h("ul", { class: "plain blocks" }, blocks.map(block)) : empty(t("core.none"), t("core.todo")));
}

function block(entry) {
  const share = entry.limit ? entry.tokens / entry.limit : 0;
  return h("li", { class: "block" }, h("div", { class: "row" }, h("h2", { class: "grow" }, h("bdi", {}, entry.title)),
    h("button", { type: "button", class: "quiet", onclick: (event) => openEntry(entry, event.currentTarget, () => { body.replaceChildren(); core(); }) }, t("entry.edit"))),
  h("p", { class: "text" }, entry.content),
  entry.limit ? h("p", { class: "row small muted" }, h("meter", { class: "gauge", min: 0, max: 1, high: 0.8, value: Math.min(1, share), "aria-label": t("core.gauge") }), t("core.tokens", { tokens: entry.tokens, limit: entry.limit })) : null);
}
