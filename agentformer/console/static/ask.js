// Ask: a question, an answer that is streamed, and numbered citations that open their source.

import { events, list, within } from "./api.js";
import { h, icon, slice, toast } from "./dom.js";
import { date, kindName, percent, t } from "./i18n.js";
import { closePanel, openSource, placeName } from "./source.js";

const HISTORY = "agentformer.history";
const MOST = 50;
const NEAREST = 3; // passages that are shown if nothing answers a question
const NEAREST_TEXT = 600; // code points of such a passage
let turns;
let field;
let running = null;
let pending = null; // a question that is shown again when the view is drawn

function history() {
  try { return JSON.parse(localStorage.getItem(HISTORY)) || []; } catch { return []; }
}

function keep(turn) {
  const rest = history().filter((item) => item.question !== turn.question);
  for (let items = [turn, ...rest].slice(0, MOST); items.length; items = items.slice(0, -5)) {
    try { localStorage.setItem(HISTORY, JSON.stringify(items)); break; } catch { /* full: fewer questions are kept */ }
  }
  recent();
}

export function recent() {
  const items = history();
  document.getElementById("recent").replaceChildren(...(items.length ? [h("h2", { class: "small muted" }, t("ask.recent")), ...questions(items)] : []));
  document.getElementById("recent-here")?.replaceChildren(...(items.length ? [h("summary", {}, t("ask.recent")), ...questions(items)] : [])); // for narrow screens, such as a phone
}

function questions(items) {
  return [h("ul", { class: "plain" }, items.slice(0, 12).map((item) => h("li", {}, h("button", { type: "button", class: "recent", title: item.question, onclick: () => reopen(item) }, item.question)))),
    h("button", { type: "button", class: "link small", onclick: () => { localStorage.removeItem(HISTORY); recent(); } }, t("ask.forget"))];
}

function reopen(item) {
  if (!turns?.isConnected) { pending = item; location.hash = "#/ask"; return; }
  turns.replaceChildren();
  closePanel();
  document.getElementById("recent-here").open = false;
  document.getElementById("main").classList.add("started");
  finish(add(item.question), item);
}

export async function show(main) {
  turns = h("div", { class: "turns" });
  field = h("textarea", {
    rows: "1", "data-main-field": true, "aria-label": t("ask.label"), placeholder: t("ask.label"), maxlength: "8000",
    oninput: grow, onkeydown: (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); } },
  });
  const button = h("button", { class: "primary square round", type: "submit", "aria-label": t("ask.send"), title: t("ask.send") }, icon("send"));
  const form = h("form", { class: "composer", onsubmit: (event) => { event.preventDefault(); if (running) running.abort(); else ask(field.value.trim(), button); } }, field, button);
  main.classList.remove("started");
  const hint = h("p", { class: "muted", id: "hint" }, t("ask.hint"));
  main.append(h("div", { class: "hello" }, h("h1", {}, t("ask.hello")), hint), h("details", { id: "recent-here" }), turns, form);
  recent();
  if (matchMedia("(min-width: 800px)").matches) field.focus();
  list("/api/rag/documents", { limit: 1 }).then(({ documents }) => {
    if (!documents.length) hint.replaceChildren(t("ask.nothing.yet"), " ", h("a", { href: "#/documents" }, t("ask.add")));
  }).catch(() => {});
  if (pending) { reopen(pending); pending = null; }
  return () => { if (running) running.abort(); };
}

function grow() {
  field.style.setProperty("height", "auto");
  field.style.setProperty("height", `${Math.min(field.scrollHeight, 200)}px`);
}

function add(question) {
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const element = h("article", { class: "turn" }, h("h2", { class: "question" }, question), answer);
  turns.append(element);
  return answer;
}

async function ask(question, button) {
  if (!question) return;
  document.getElementById("main").classList.add("started");
  field.value = "";
  grow();
  const answer = add(question);
  const text = h("p", { class: "text" });
  answer.setAttribute("aria-busy", "true");
  answer.replaceChildren(text, h("p", { class: "muted thinking" }, t("ask.looking")));
  answer.parentElement.scrollIntoView({ block: "start" });
  running = new AbortController();
  button.replaceChildren(icon("stop"));
  button.setAttribute("aria-label", t("ask.stop"));
  let fault = "";
  try {
    await events("POST", "/api/rag/query", {
      body: within({ question, stream: true }),
      signal: running.signal,
      onevent: (name, data) => {
        answer.querySelector(".thinking")?.remove();
        if (name === "token") text.append(data.text);
        else if (name === "error") fault = data.detail;
        else if (name === "answer") { const turn = { question, at: new Date().toISOString(), fault, ...data, hits: data.mode === "none" ? data.hits.slice(0, NEAREST).map(passage) : [] }; finish(answer, turn); keep(turn); answer.parentElement.scrollIntoView({ block: "start" }); }
      },
    });
  } catch (error) {
    answer.querySelector(".thinking")?.remove();
    answer.append(error.name === "AbortError" ? h("p", { class: "muted" }, t("ask.stopped"))
      : h("p", { class: "note error", role: "alert" }, error.message, " ", h("button", { type: "button", class: "link", onclick: () => { answer.parentElement.remove(); ask(question, button); } }, t("again"))));
  } finally {
    running = null;
    answer.removeAttribute("aria-busy");
    button.replaceChildren(icon("send"));
    button.setAttribute("aria-label", t("ask.send"));
  }
}

function finish(answer, turn) {
  answer.replaceChildren(...[state(turn), turn.mode === "none" ? null : body(turn), warnings(turn), sources(turn), nearest(turn), actions(turn)].filter(Boolean));
}

/** Return a hit as a citation of the part that matches best. */
function passage(hit) {
  const [start, end] = hit.span || [0, hit.content.length];
  const quote = slice(hit.content, start, Math.min(end, start + NEAREST_TEXT));
  return { document: hit.document, document_id: hit.document_id, page: hit.page, label: hit.label, entry_id: hit.id, kind: hit.kind, start: hit.start + start, end: hit.start + start + Array.from(quote).length, quote };
}

function state(turn) {
  if (turn.mode === "none") return h("div", { class: "note" }, h("p", {}, h("strong", {}, t("ask.none"))), h("p", {}, t("ask.none.todo")));
  const sure = turn.confidence === null || turn.confidence === undefined ? "" : ` · ${t("ask.sure", { share: percent(turn.confidence) })}`;
  return h("p", { class: "state muted" }, t(turn.mode === "extractive" ? "ask.quoted" : "ask.written"), sure);
}

/** Return the parts of an answer, and for each part whether the sources support it. `sentences` are the unsupported sentences, without their citations. */
export function supported(answer, sentences) {
  let plain = "";
  const places = [];
  for (const part of answer.matchAll(/\s*\[\d+\]|[^]/gu)) {
    if (/^\s*\[\d+\]$/.test(part[0])) continue;
    for (let offset = 0; offset < part[0].length; offset += 1) places.push(part.index + offset);
    plain += part[0];
  }
  const found = sentences.map((sentence) => [plain.indexOf(sentence), sentence.length]).filter(([start, length]) => start >= 0 && length).sort((one, other) => one[0] - other[0]);
  const parts = [];
  let done = 0;
  for (const [start, length] of found) {
    const [from, to] = [places[start], places[start + length - 1] + 1];
    if (from < done) continue;
    parts.push([answer.slice(done, from), true], [answer.slice(from, to), false]);
    done = to;
  }
  return [...parts, [answer.slice(done), true]].filter(([text]) => text);
}

/** Return the answer as text, with buttons for its citations and with marks under sentences without support. */
function body(turn) {
  const text = h("p", { class: "text" });
  for (const [piece, good] of supported(turn.answer, turn.unsupported.map(({ sentence }) => sentence))) {
    const place = good ? text : h("span", { class: "unsupported", title: t("ask.unsupported.short") });
    for (const part of atMarks(turn, piece)) {
      const found = /^\[(\d+)\]$/.exec(part);
      const citation = found && turn.citations.find((item) => item.number === Number(found[1]));
      place.append(citation ? reference(citation) : part);
    }
    if (place !== text) text.append(place);
  }
  return text;
}

/** Split an answer at its citations. In an extractive answer, only the last mark of a line is a citation: a quote may contain others. */
function atMarks(turn, text) {
  return text.split(turn.mode === "extractive" ? /(\[\d+\])$/m : /(\[\d+\])/);
}

function reference(citation) {
  return h("button", { type: "button", class: "cite", "aria-label": t("ask.open", { n: citation.number, name: name(citation) }), onclick: (event) => openSource(citation, event.currentTarget) }, String(citation.number));
}

function name(citation) {
  if (!citation.document_id) return [kindName(citation.kind), citation.speaker, date(citation.at, { dateStyle: "medium" })].filter(Boolean).join(" · ");
  return placeName(citation.document, citation.page, citation.label);
}

function warnings(turn) {
  const told = turn.warnings.filter((text) => !turn.unsupported.some(({ sentence }) => text.includes(sentence))); // the list of unsupported sentences shows these
  const notes = [...told, turn.fault, turn.complete === false ? t("ask.incomplete") : ""].filter(Boolean);
  const weak = turn.unsupported.map((item) => h("li", {}, h("q", {}, item.sentence), item.claims.length ? h("span", { class: "muted" }, ` (${item.claims.join(", ")})`) : null));
  if (!notes.length && !weak.length) return null;
  return h("div", { class: "note warn" }, notes.map((text) => h("p", {}, text)),
    weak.length ? [h("p", {}, h("strong", {}, t("ask.unsupported", { n: weak.length }))), h("ul", {}, weak)] : null);
}

function sources(turn) {
  if (!turn.citations.length) return null;
  return h("section", { class: "sources", "aria-label": t("ask.sources") }, h("ol", { class: "plain" }, turn.citations.map((citation) => h("li", {}, source(citation)))));
}

function source(citation) {
  return h("button", { type: "button", class: "source", onclick: (event) => openSource(citation, event.currentTarget) },
    citation.number ? h("span", { class: "source-number", "aria-hidden": "true" }, String(citation.number)) : null,
    h("span", { class: "grow" }, h("span", { class: "source-name" }, h("bdi", {}, name(citation))), citation.headings ? h("span", { class: "source-quote source-headings" }, citation.headings) : null, h("span", { class: "source-quote" }, citation.quote)));
}

/** Return the nearest passages of a question that nothing answers. */
function nearest(turn) {
  if (turn.mode !== "none" || !turn.hits?.length) return null;
  return h("section", { class: "sources nearest" }, h("h3", {}, t("ask.nearest")), h("ul", { class: "plain" }, turn.hits.map((hit) => h("li", {}, source(hit)))));
}

function actions(turn) {
  if (turn.mode === "none") return null;
  return h("p", { class: "row actions" }, h("button", { type: "button", class: "quiet", onclick: () => copy(turn) }, icon("copy"), t("ask.copy")));
}

const escaped = (text) => text.replace(/[\\`*_[\]<>#|]/g, "\\$&");

/** Return a turn as Markdown with its sources. */
export function markdown(turn) {
  const quoted = (text) => text.split("\n").map((line) => `> ${escaped(line)}`).join("\n");
  const cited = atMarks(turn, turn.answer).map((part) => (/^\[\d+\]$/.test(part) ? part : escaped(part))).join("");
  const indented = (text) => text.replace(/^/gm, "   ");
  const places = turn.citations.map((citation) => [`${citation.number}. ${escaped(name(citation))}`, citation.headings ? indented(escaped(citation.headings)) : "", indented(quoted(citation.quote))].filter(Boolean).join("\n\n"));
  return [`## ${escaped(turn.question)}`, cited, places.length ? `### ${t("ask.sources")}` : "", ...places].filter(Boolean).join("\n\n") + "\n";
}

async function copy(turn) {
  try { await navigator.clipboard.writeText(markdown(turn)); toast(t("ask.copied")); } catch { toast(t("ask.copy.failed"), { error: true }); }
}
