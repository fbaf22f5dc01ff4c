// Entries: a line in a list, a search result with the reasons for its rank, and the panel that shows all data of an entry.

import { get, list, mayChange, patch, post, remove } from "./api.js";
import { dialog, h, iconButton, svg, toast } from "./dom.js";
import { date, kindName, nameOf, number, percent, t } from "./i18n.js";
import { closePanel, openSource, showPanel } from "./source.js";

const AHEAD = 60; // days after today that the plot of the importance shows
const DAY = 86400000; // milliseconds

export function badges(entry) {
  return [h("span", { class: "badge" }, kindName(entry.tier === "core" ? "core" : entry.kind)),
    entry.superseded_by ? h("span", { class: "badge pending" }, t("memory.superseded")) : entry.archived_at ? h("span", { class: "badge" }, t("memory.archived")) : null];
}

export function when(entry) {
  return [entry.speaker || (entry.role && nameOf("speaker", entry.role)), date(entry.occurred_at || entry.created_at)].filter(Boolean).join(" · ");
}

/** Return the line of an entry in a list. A click opens the entry in the panel. `changed` is called after a change of the entry. */
export function line(entry, changed) {
  return h("li", { class: "row line" }, h("button", { type: "button", class: "line-main entry", onclick: (event) => openEntry(entry, event.currentTarget, changed) },
    h("span", { class: "entry-head" }, badges(entry), h("span", { class: "muted small" }, when(entry))),
    entry.title ? h("bdi", { class: "line-name" }, entry.title) : null, h("span", { class: "entry-text" }, entry.content)));
}

export function rows(items, make) {
  return h("ul", { class: "plain rows" }, items.map(make));
}

/** Return the line of a search result, with the ranked lists that contain it. */
export function found(hit, changed) {
  const total = hit.votes.reduce((sum, vote) => sum + vote.weight, 0) || 1;
  const votes = h("details", { class: "votes" }, h("summary", {}, t("votes", { share: percent(hit.score) })),
    h("ul", { class: "plain" }, hit.votes.map((vote) => h("li", {}, h("span", { class: "vote-name" }, t(`vote.${vote.name}`)),
      h("meter", { min: 0, max: 1, value: vote.weight / total, "aria-label": t(`vote.${vote.name}`) }), h("span", { class: "muted" }, t("vote.rank", { rank: number(vote.rank), weight: number(vote.weight, 2) }))))));
  const item = line(hit, changed);
  item.classList.add("found");
  item.append(votes);
  return item;
}

/** Return the entries with these ids, in this order. This does not count as a use of the entries; a request for a single entry does. */
export async function look(ids, namespace) {
  const where = JSON.stringify({ type: "in", key: "$id", value: ids });
  const { entries } = await list("/api/memory", { where, include_archived: true, limit: 200, ...(namespace ? { namespace } : {}) });
  return ids.map((id) => entries.find((entry) => entry.id === id)).filter(Boolean);
}

/** Open an entry in the panel: its text, its origin, its former versions, and buttons to change or delete it. */
export async function openEntry(entry, from, changed = () => {}) {
  if (entry.source && entry.kind === "chunk") {
    openSource({ ...entry.source, document: entry.source.name, document_id: entry.source.document_id, quote: entry.content }, from);
    return;
  }
  let current, versions, salience, changes;
  try {
    [[current], { versions }, salience, changes] = await Promise.all([look([entry.id], entry.namespace), get(`/api/memory/${entry.id}/history`), get(`/api/memory/${entry.id}/salience`), mayChange()]);
  } catch (error) { toast(error.message, { error: true }); return; }
  if (!current) { toast(t("entry.gone"), { error: true }); return; }
  const links = await look([current.archived_by, current.superseded_by].filter(Boolean), current.namespace).catch(() => []);
  const done = () => { closePanel(); Promise.resolve(changed()).then(() => { if (document.activeElement === document.body) document.getElementById("main").focus(); }); };
  const saved = () => { changed(); openEntry(current, from, changed); }; // the panel stays open, with the new text
  const past = versions.map((version, index) => {
    const next = versions[index + 1] || current;
    return h("li", {}, h("p", { class: "muted small" }, t("entry.version", { n: version.version }), " · ", date(version.updated_at || version.created_at)), h("p", { class: "text" }, difference(version.content, next.content)));
  }).reverse();
  const [kind, state] = badges(current);
  showPanel(current.title || kindName(current.kind), h("span", { class: "row" }, current.title ? kind : null, state, h("span", {}, when(current))), from,
    h("p", { class: "text" }, current.content), changes ? actions(current, done, saved) : null, facts(current, links, from, changed), plot(salience),
    past.length ? h("section", {}, h("h3", {}, t("entry.history")), h("ol", { class: "plain history" }, past)) : null);
}

function actions(entry, done, saved) {
  const edit = () => dialog(t("entry.edit"), h("label", {}, t("memory.text"), h("textarea", { name: "content", rows: 8, required: true }, entry.content)), {
    submit: t("save"), cancel: t("cancel"), onsubmit: async ({ content }) => { await patch(`/api/memory/${entry.id}`, { content }, { match: `"${entry.version}"` }); toast(t("saved")); saved(); },
  });
  const drop = () => dialog(t("entry.delete"), h("p", {}, t("entry.delete.text")), {
    submit: t("delete"), cancel: t("cancel"), danger: true, onsubmit: async () => { await remove(`/api/memory/${entry.id}`); toast(t("entry.deleted")); done(); },
  });
  const restore = async () => {
    try { await post("/api/memory/restore", { summary_id: entry.id }); toast(t("memory.restored", { n: 1 })); done(); } catch (error) { toast(error.message, { error: true }); }
  };
  const old = entry.superseded_by || (entry.kind === "summary" ? !entry.archived_at : entry.archived_at && !entry.archived_by);
  return h("p", { class: "row" }, h("button", { type: "button", onclick: edit }, t("entry.edit")),
    old ? h("button", { type: "button", onclick: restore }, t("memory.restore")) : null, iconButton("trash", t("delete"), drop));
}

function facts(entry, links, from, changed) {
  const other = (id) => {
    const linked = links.find((item) => item.id === id);
    return linked ? h("button", { type: "button", class: "link", onclick: () => openEntry(linked, from, changed) }, linked.title || shortened(linked.content)) : "";
  };
  const values = [[t("entry.stored"), date(entry.created_at)], [t("entry.happened"), date(entry.occurred_at)], [t("entry.session"), entry.session_id], [t("entry.user"), entry.user_id],
    [t("entry.used"), entry.access_count ? `${t("times", { n: entry.access_count })} · ${date(entry.last_accessed)}` : t("never")],
    [t("entry.archived"), date(entry.archived_at)], [t("entry.archived.by"), entry.archived_by && other(entry.archived_by)], [t("entry.superseded.by"), entry.superseded_by && other(entry.superseded_by)]];
  return h("dl", { class: "facts" }, values.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("bdi", {}, value)))));
}

const shortened = (text) => (text.length > 80 ? `${text.slice(0, 80)}…` : text);

/** Return a small plot of the importance of an entry, from its last use until some weeks after today. */
function plot({ now, stored, rate, since, used }) {
  const [width, height, top] = [320, 72, 6];
  const before = Math.max(0, (Date.now() - new Date(since).valueOf()) / DAY);
  const days = before + AHEAD;
  const at = (day) => stored * rate ** day;
  const point = (day) => `${((day / days) * width).toFixed(1)},${(height - at(day) * (height - top)).toFixed(1)}`;
  const points = Array.from({ length: 61 }, (_, step) => point((step / 60) * days));
  const said = rate < 1 ? t("salience.falls", { now: number(now, 2), later: number(at(before + 30), 2), share: percent(rate) }) : t("salience.stays", { now: number(now, 2) });
  const today = (before / days) * width;
  return h("section", {}, h("h3", {}, t("entry.salience")),
    h("figure", { class: "plot" }, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said, preserveAspectRatio: "none" },
      svg("polygon", { points: `0,${height} ${points.join(" ")} ${width},${height}`, class: "plot-area" }), svg("polyline", { points: points.join(" "), class: "plot-line" }),
      svg("line", { x1: today, x2: today, y1: 0, y2: height, class: "plot-now" })),
    h("p", { class: "row small muted" }, h("span", { class: "grow" }, t(used ? "salience.used" : "salience.stored", { date: date(since, { dateStyle: "medium" }) })), h("span", {}, t("salience.ahead", { n: AHEAD })))),
    h("p", { class: "small" }, said));
}

/** Return the words of two texts. Words only in `before` are marked as deleted, and words only in `after` as inserted. */
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
