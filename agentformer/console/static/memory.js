// Memory: search with the reasons of each rank, sessions with their summaries, what is known, and core blocks.

import { all, get, list, patch, post, postWithin, remove } from "./api.js";
import { dialog, empty, h, icon, iconButton, toast } from "./dom.js";
import { date, kindName, number, percent, t } from "./i18n.js";
import { closePanel, openSource, showPanel } from "./source.js";

const TABS = ["search", "sessions", "known", "core"];
const PAGE = 100;
let body;
let leave = () => {};

export async function show(main, [tab = "search", id]) {
  const name = TABS.includes(tab) ? tab : "search";
  const links = TABS.map((item) => h("a", { href: `#/memory/${item}`, "aria-current": item === name ? "page" : null }, t(`memory.${item}`)));
  body = h("div", { class: "memory" });
  main.append(h("header", { class: "view-head" }, h("h1", {}, t("nav.memory"))), h("nav", { class: "tabs", "aria-label": t("nav.memory") }, links), body);
  await { search, sessions, known, core }[name](id);
  return () => { leave(); leave = () => {}; };
}

function badges(entry) {
  return [h("span", { class: "badge" }, kindName(entry.tier === "core" ? "core" : entry.kind)),
    entry.superseded_by ? h("span", { class: "badge pending" }, t("memory.superseded")) : entry.archived_at ? h("span", { class: "badge" }, t("memory.archived")) : null];
}

function when(entry) {
  return [entry.speaker, date(entry.occurred_at || entry.created_at)].filter(Boolean).join(" · ");
}

/** Return the line of an entry. It opens the entry beside the list. */
function line(entry, ...more) {
  return h("li", { class: "row line" }, h("button", { type: "button", class: "line-main entry", onclick: (event) => open(entry, event.currentTarget) },
    h("span", { class: "entry-head" }, badges(entry), h("span", { class: "muted small" }, when(entry))),
    entry.title ? h("bdi", { class: "line-name" }, entry.title) : null, h("span", { class: "entry-text" }, entry.content)), ...more);
}

function rows(entries, make = line) {
  return h("ul", { class: "plain rows" }, entries.map((entry) => make(entry)));
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
          hits.length ? rows(hits, found) : empty(t("memory.search.none"), t("ask.none.todo")));
      } catch (error) { results.replaceChildren(h("p", { class: "note error", role: "alert" }, error.message)); }
      results.removeAttribute("aria-busy");
    },
  }, field, h("button", { type: "submit", class: "primary" }, t("memory.search")));
  body.append(form, h("p", { class: "row small" }, old, h("label", { for: "old" }, t("memory.search.old"))), results);
  if (matchMedia("(min-width: 800px)").matches) field.focus();
}

function found(hit) {
  const total = hit.votes.reduce((sum, vote) => sum + vote.weight, 0) || 1;
  const votes = h("details", { class: "votes" }, h("summary", {}, t("votes", { share: percent(hit.score) })),
    h("ul", { class: "plain" }, hit.votes.map((vote) => h("li", {}, h("span", { class: "vote-name" }, t(`vote.${vote.name}`)),
      h("meter", { min: 0, max: 1, value: vote.weight / total, "aria-label": t(`vote.${vote.name}`) }), h("span", { class: "muted" }, t("vote.rank", { rank: number(vote.rank), weight: number(vote.weight, 2) }))))));
  const item = line(hit);
  item.classList.add("found");
  item.append(votes);
  return item;
}

// Sessions

async function sessions(id) {
  if (id) return session(id);
  const place = h("div", {}, h("p", { class: "muted" }, t("loading")));
  body.append(place);
  const groups = new Map();
  const entries = await all("/api/memory", "entries", { kind: ["message", "summary"], include_archived: true });
  for (const entry of entries) {
    if (!entry.session_id) continue;
    const group = groups.get(entry.session_id) || { id: entry.session_id, messages: 0, summaries: 0, last: "" };
    group[entry.kind === "message" ? "messages" : "summaries"] += entry.kind === "summary" && entry.archived_at ? 0 : 1;
    group.last = [group.last, entry.occurred_at || entry.created_at].sort()[1];
    groups.set(entry.session_id, group);
  }
  const sorted = [...groups.values()].sort((a, b) => (a.last < b.last ? 1 : -1));
  place.replaceChildren(sorted.length ? more(sorted, (group) => h("li", { class: "row line" }, h("a", { class: "line-main", href: `#/memory/sessions/${encodeURIComponent(group.id)}` },
    h("bdi", { class: "line-name" }, group.id), h("span", { class: "muted small" }, [t("messages", { n: group.messages }), group.summaries ? t("summaries", { n: group.summaries }) : "", date(group.last)].filter(Boolean).join(" · ")))))
    : empty(t("memory.sessions.none"), t("memory.sessions.todo")));
}

/** Return a list that draws its next items when its end comes into sight. */
function more(items, make) {
  const rest = items.slice(PAGE);
  const element = h("ul", { class: "plain rows" }, items.slice(0, PAGE).map(make));
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
  const timeline = h("ol", { class: "plain timeline" });
  const shown = new Set();
  for (const message of messages) {
    const summary = covered.get(message.id);
    if (!summary) { timeline.append(h("li", { class: `message ${message.metadata.role || ""}` }, h("p", { class: "muted small" }, when(message)), h("p", { class: "text" }, message.content))); continue; }
    if (shown.has(summary.id)) continue;
    shown.add(summary.id);
    timeline.append(folded(summary, messages.filter((item) => covered.get(item.id) === summary), id));
  }
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

// What is known

async function known() {
  const old = h("input", { type: "checkbox", id: "old", onchange: () => load() });
  const kind = h("input", { type: "search", "data-main-field": true, "aria-label": t("memory.filter"), placeholder: t("memory.filter"), oninput: () => draw() });
  const place = h("div", {});
  let entries = [];
  const draw = () => {
    const wanted = kind.value.trim().toLocaleLowerCase();
    const shown = wanted ? entries.filter((entry) => `${entry.title} ${entry.content} ${entry.kind}`.toLocaleLowerCase().includes(wanted)) : entries;
    leave();
    place.replaceChildren(shown.length ? more(shown, (entry) => line(entry)) : empty(t(wanted ? "documents.no.match" : "memory.known.none"), t(wanted ? "documents.no.match.todo" : "memory.known.todo")));
  };
  const load = async () => {
    entries = (await all("/api/memory", "entries", { tier: ["semantic", "episodic"], include_archived: old.checked })).filter((entry) => !["chunk", "page", "document", "message"].includes(entry.kind)).reverse();
    draw();
  };
  const add = h("button", { type: "button", class: "primary", onclick: () => dialog(t("memory.add"), h("label", {}, t("memory.text"), h("textarea", { name: "content", rows: 4, required: true })), {
    submit: t("memory.add"), cancel: t("cancel"), onsubmit: async ({ content }) => { await postWithin("/api/memory", { content }); await load(); },
  }) }, t("memory.add"));
  body.append(h("div", { class: "row filter" }, kind, add), h("p", { class: "row small" }, old, h("label", { for: "old" }, t("memory.search.old"))), place);
  await load();
}

/** Open an entry in the panel: its text, its places, its former versions, and what can be done with it. */
async function open(entry, from) {
  if (entry.source && entry.kind === "chunk") {
    openSource({ ...entry.source, document: entry.source.name, document_id: entry.source.document_id, quote: entry.content }, from);
    return;
  }
  const [current, { versions }] = await Promise.all([get(`/api/memory/${entry.id}`), get(`/api/memory/${entry.id}/history`)]);
  const facts = [[t("entry.stored"), date(current.created_at)], [t("entry.happened"), date(current.occurred_at)], [t("entry.session"), current.session_id], [t("entry.user"), current.user_id],
    [t("entry.salience"), number(current.salience, 2)], [t("entry.used"), current.access_count ? t("times", { n: current.access_count }) : ""]].filter(([, value]) => value);
  const reload = async () => { closePanel(); body.replaceChildren(); await { search, known, core, sessions }[TABS.find((name) => location.hash.includes(name)) || "search"](); };
  const edit = () => dialog(t("entry.edit"), h("label", {}, t("memory.text"), h("textarea", { name: "content", rows: 8, required: true }, current.content)), {
    submit: t("save"), cancel: t("cancel"), onsubmit: async ({ content }) => { await patch(`/api/memory/${entry.id}`, { content }, { match: `"${current.version}"` }); toast(t("saved")); await reload(); },
  });
  const drop = () => dialog(t("entry.delete"), h("p", {}, t("entry.delete.text")), {
    submit: t("delete"), cancel: t("cancel"), danger: true, onsubmit: async () => { await remove(`/api/memory/${entry.id}`); toast(t("entry.deleted")); await reload(); },
  });
  const restore = current.superseded_by || (current.kind === "summary" && !current.archived_at)
    ? h("button", { type: "button", onclick: async () => { try { await post("/api/memory/restore", { summary_id: entry.id }); toast(t("memory.restored", { n: 1 })); await reload(); } catch (error) { toast(error.message, { error: true }); } } }, t("memory.restore")) : null;
  const past = versions.map((version, index) => {
    const next = versions[index + 1] || current;
    return h("li", {}, h("p", { class: "muted small" }, t("entry.version", { n: version.version }), " · ", date(version.updated_at || version.created_at)), h("p", { class: "text" }, difference(version.content, next.content)));
  }).reverse();
  showPanel(current.title || kindName(current.kind), h("span", { class: "row" }, badges(current)), from,
    h("p", { class: "text" }, current.content),
    h("p", { class: "row" }, h("button", { type: "button", onclick: edit }, t("entry.edit")), restore, iconButton("trash", t("delete"), drop)),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("bdi", {}, value))))),
    past.length ? h("section", {}, h("h3", {}, t("entry.history")), h("ol", { class: "plain history" }, past)) : null);
}

/** Return the words of two texts: those of the former only are deleted, those of the later only are inserted. */
export function difference(before, after) {
  const [a, b] = [before, after].map((text) => text.split(/(\s+)/).slice(0, 600));
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const parts = [];
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (i < a.length && j < b.length && a[i] === b[j]) { parts.push(a[i]); i += 1; j += 1; } else if (j >= b.length || (i < a.length && table[i + 1][j] >= table[i][j + 1])) parts.push(h("del", {}, a[i++]));
    else parts.push(h("ins", {}, b[j++]));
  }
  return parts;
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
    h("button", { type: "button", class: "quiet", onclick: (event) => open(entry, event.currentTarget) }, t("entry.edit"))),
  h("p", { class: "text" }, entry.content),
  entry.limit ? h("p", { class: "row small muted" }, h("meter", { class: "gauge", min: 0, max: 1, high: 0.8, value: Math.min(1, share), "aria-label": t("core.gauge") }), t("core.tokens", { tokens: entry.tokens, limit: entry.limit })) : null);
}
