// Documents: add files and folders, show their progress, and filter, read and delete documents.

import { Problem, all, events, get, headers, keyMissing, list, mayChange, namespace, remove, root } from "./api.js";
import { empty, failed, fileName, h, icon, iconButton, toast } from "./dom.js";
import { percent, seconds, size, t } from "./i18n.js";
import { missing, why } from "./reasons.js";
import { closeSource, openSource } from "./source.js";

const AT_ONCE = 2; // uploads and jobs that this page follows at the same time; the server limits both
const ROWS = 100; // rows of the list that are drawn at a time
const UNDO = 30; // seconds
const offered = new Map(); // messages with a button to undo a deletion or a replacement, by the id of the document
const files = []; // the rows of files of this tab; they survive a change of the view
let active = 0;
let view = null;

export async function show(main) {
  const changes = await mayChange();
  const pick = h("input", { type: "file", multiple: true, hidden: true, onchange: (event) => take([...event.target.files].map((file) => [file, file.name]), event.target) });
  const folder = h("input", { type: "file", webkitdirectory: true, hidden: true, onchange: (event) => take([...event.target.files].map((file) => [file, file.webkitRelativePath || file.name]), event.target) });
  const conflict = h("select", { id: "conflict", onchange: (event) => sessionStorage.setItem("agentformer.conflict", event.target.value) },
    ["replace", "keep-both"].map((name) => h("option", { value: name, selected: name === (sessionStorage.getItem("agentformer.conflict") || "replace") }, t(`conflict.${name}`))));
  const drop = h("section", { class: "drop", "aria-label": t("documents.add") },
    h("p", { class: "drop-title" }, icon("upload"), t("documents.drop")), h("p", { class: "muted" }, t("documents.formats")),
    h("p", { class: "row center" }, h("button", { type: "button", class: "primary", onclick: () => pick.click() }, t("documents.files")),
      h("button", { type: "button", onclick: () => folder.click() }, t("documents.folder"))),
    h("p", { class: "row center small" }, h("label", { for: "conflict" }, t("conflict")), conflict), pick, folder);
  view = {
    progress: h("ul", { class: "plain progress-list", "aria-label": t("documents.progress") }),
    clear: h("p", { class: "row end small", hidden: true }, h("button", { type: "button", class: "link", onclick: clear }, t("documents.clear"))),
    filter: h("input", { type: "search", "data-main-field": true, placeholder: t("documents.filter"), "aria-label": t("documents.filter"), oninput: () => draw() }),
    rows: h("div", {}), count: h("span", { class: "muted" }), documents: [], known: "", drawn: ROWS, changes,
  };
  main.append(h("header", { class: "view-head" }, h("h1", {}, t("nav.documents")), view.count), changes ? drop : h("p", { class: "note" }, t("documents.read.only")), view.clear, view.progress,
    h("div", { class: "row filter" }, view.filter), view.rows);
  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", (event) => { if (!drop.contains(event.relatedTarget)) drop.classList.remove("over"); });
  drop.addEventListener("drop", async (event) => { event.preventDefault(); drop.classList.remove("over"); take(await dropped(event.dataTransfer)); });
  const watch = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) { view.drawn += ROWS; draw(); } }, { rootMargin: "600px" });
  view.watch = watch;
  files.forEach(render);
  resume();
  offerEarlier();
  await load();
  return () => { watch.disconnect(); view = null; };
}

/** Load the list again. If this fails, show the error instead of the list, with a button to try again. */
async function load() {
  const mine = view;
  try { await read(); } catch (error) { if (view === mine && mine) { mine.known = ""; mine.rows.replaceChildren(failed(error.message, () => { resume(); load(); })); } }
}

async function read() {
  if (!view) return;
  const mine = view;
  const put = (items) => {
    const known = JSON.stringify(items);
    if (view !== mine || known === mine.known) return; // an unchanged list is not drawn again, because the person may be about to click
    Object.assign(mine, { known, documents: [...items].reverse() });
    draw();
  };
  const documents = await all("/api/rag/documents", "documents", {}, (items) => { if (!mine.known) put(items); });
  put(documents);
  if (view !== mine) return;
  closeSource((id) => !documents.some((item) => item.id === id));
}

/** Return the files that were dropped, including the files in dropped folders, as pairs of a file and its path. */
async function dropped(data) {
  const entries = [...data.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...data.files].map((file) => [file, file.name]);
  const found = [];
  const walk = async (entry, path) => {
    if (entry.isFile) { found.push([await new Promise((done, fail) => entry.file(done, fail)), path + entry.name]); return; }
    const reader = entry.createReader();
    for (let batch = [null]; batch.length;) {
      batch = await new Promise((done, fail) => reader.readEntries(done, fail));
      for (const child of batch) await walk(child, `${path}${entry.name}/`);
    }
  };
  for (const entry of entries) await walk(entry, "");
  return found;
}

function take(pairs, input) {
  const wanted = pairs.filter(([, path]) => !path.split("/").some((part) => part.startsWith(".")));
  const conflict = document.getElementById("conflict").value;
  for (const [file, path] of wanted) { const row = { name: path, file, conflict, bytes: file.size, state: "waiting" }; files.push(row); render(row); }
  if (input) input.value = "";
  if (!wanted.length) toast(t("documents.no.files"));
  next();
}

function next() {
  while (active < AT_ONCE) {
    const row = files.find((item) => item.state === "waiting");
    if (!row) return;
    active += 1;
    run(row).finally(() => { active -= 1; next(); });
  }
}

async function run(row) {
  try {
    if (row.file) { row.state = "sending"; render(row); row.job = await upload(row); row.sent_file = row.file; row.file = row.password = null; }
    row.state = "reading"; row.started = performance.now(); render(row);
    finish(row, await follow(row));
  } catch (error) {
    if (error.status === 429 && row.file) { row.state = "busy"; render(row); await new Promise((done) => setTimeout(done, 3000)); row.state = "waiting"; return; }
    if (error.status) row.password = null;
    Object.assign(row, { state: "failed", status: error.status, document: { reason: error.message, problem: error.kind } });
    render(row);
  }
}

/** Send a file and return its job. XMLHttpRequest is used because it reports how many bytes were sent. */
function upload(row) {
  const form = new FormData();
  if (namespace.get()) form.append("namespace", namespace.get());
  form.append("on_conflict", row.conflict === "replace" ? "replace-with-undo" : row.conflict);
  if (row.password) form.append("password", row.password);
  form.append("file", row.file, row.name);
  return new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    request.open("POST", `${root}/api/rag/upload`);
    for (const [name, value] of Object.entries(headers({ Prefer: "respond-async" }))) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => { row.sent = event.loaded / event.total; render(row); };
    request.onerror = () => fail(new Problem(0, { detail: t("error.offline") }));
    request.onload = () => {
      let body = {};
      try { body = JSON.parse(request.responseText); } catch { /* not a problem document */ }
      if (request.status === 202) done(body.id); else fail(new Problem(request.status, body));
    };
    request.send(form);
  });
}

/** Wait for the end of a job and return the job. Progress comes as events, or from repeated requests if too many clients follow jobs. */
async function follow(row) {
  const path = `/api/jobs/${row.job}`;
  let last = null;
  try {
    await events("GET", path, { onevent: (name, data) => { if (name === "done") last = data; else { row.progress = data.progress; row.state = data.state === "queued" ? "queued" : "reading"; render(row); } } });
  } catch (error) { if (error.status !== 429 && error.status !== 0) throw error; }
  while (!last) {
    await new Promise((done) => setTimeout(done, 1500));
    if (keyMissing()) continue;
    const job = await get(path);
    row.progress = job.progress; render(row);
    if (["done", "failed", "cancelled"].includes(job.state)) last = job;
  }
  return last;
}

function finish(row, job) {
  const document = job.documents[0] || { reason: job.reason, reason_code: "server" };
  if (job.state === "cancelled") row.state = "cancelled";
  else row.state = document.id && ["ready", "pending"].includes(document.status) ? "done" : "failed";
  row.document = document;
  if (!wantsPassword(row)) row.sent_file = null;
  render(row);
  load();
  if (document.replaced || files.every(ended)) offerEarlier();
}

async function resume() {
  let jobs;
  try { jobs = (await list("/api/jobs", { limit: 50 })).jobs; } catch { return; }
  for (const job of jobs.reverse()) {
    if (["done", "failed", "cancelled"].includes(job.state) || files.some((row) => row.job === job.id)) continue;
    const row = { name: job.documents[0]?.name || t("documents.resumed", { n: job.progress.files }), job: job.id, progress: job.progress, state: "waiting" };
    files.push(row); render(row);
  }
  next();
}

function share(row) {
  if (row.state === "sending") return row.sent === undefined ? null : row.sent * 0.3;
  const { windows, windows_done: done } = row.progress || {};
  return windows ? 0.3 + 0.7 * (done / windows) : null;
}

function told(row) {
  if (row.state === "sending") return t("state.sending", { share: percent(row.sent || 0), size: size(row.bytes || 0) });
  const { windows, windows_done: done, pages, chunks } = row.progress || {};
  if (row.state === "reading" && windows) {
    const read = pages ? `${t("pages", { n: pages })} · ${t("chunks", { n: chunks })} · ` : "";
    const left = done && done < windows ? ((performance.now() - row.started) / 1000 / done) * (windows - done) : 0;
    return read + t("state.embedding", { done, windows }) + (left > 1 ? ` · ${t("state.left", { time: seconds(left) })}` : "");
  }
  if (row.state === "done") return [t(row.document.unchanged ? "state.unchanged" : row.document.replaced && !row.asked ? "state.replaced" : "state.done"), t("pages", { n: row.document.pages }), t("chunks", { n: row.document.chunks })].join(" · ");
  return t(row.state === "failed" && row.document.id ? "state.unread" : `state.${row.state}`);
}

const wantsPassword = (row) => row.state === "failed" && ["password_needed", "password_wrong"].includes(row.document.reason_code) && row.sent_file;

/** Return a form that sends the file once more with a password. The password is in no variable after it was sent. */
function passwordForm(row) {
  const field = h("input", { type: "password", autocomplete: "off", required: true, maxlength: "1000" });
  const send = (event) => {
    event.preventDefault();
    Object.assign(row, { password: field.value, file: row.sent_file, sent_file: null, sent: 0, progress: null, job: null, asked: true, refocus: true, state: "waiting" });
    field.value = "";
    render(row);
    next();
  };
  return h("form", { class: "row password", onsubmit: send }, h("label", { class: "grow" }, t("password.of", { name: row.name }), field), h("button", { type: "submit" }, t("again")));
}

function render(row) {
  if (!view) return;
  const part = share(row);
  const busy = !ended(row);
  const element = h("li", { class: `file ${row.state}` },
    h("div", { class: "row" }, row.state === "done" ? icon("check") : row.state === "failed" ? icon("warning") : null,
      fileName(row.name, { class: "file-name" }), h("span", { class: "grow muted small file-state" }, told(row)),
      busy && row.job ? iconButton("close", t("documents.cancel", { name: row.name }), () => remove(`/api/jobs/${row.job}`).catch(() => {})) : null,
      !busy ? iconButton("close", t("documents.dismiss", { name: row.name }), () => { files.splice(files.indexOf(row), 1); row.element.remove(); }) : null),
    busy ? h("progress", { max: "1", "aria-label": row.name, ...(part === null ? {} : { value: part }) }) : null,
    row.state === "failed" ? h("p", { class: "error-text", role: "alert" }, row.status === 0 ? row.document.reason : why(row.document), " ",
      row.status === 0 && (row.file || row.job) ? h("button", { type: "button", class: "link", onclick: () => { row.state = "waiting"; delete row.status; render(row); next(); } }, t("again")) : null) : null,
    row.state === "done" && missing(row.document) ? h("p", { class: "warn-text" }, missing(row.document), " ", why(row.document)) : null,
    wantsPassword(row) ? passwordForm(row) : null,
    row.undo ? h("p", { class: "small" }, h("button", { type: "button", class: "link", "aria-label": `${t("undo")}: ${row.name}`, onclick: row.undo }, t("undo.replaced"))) : null);
  if (row.element?.isConnected) row.element.replaceWith(element);
  else view.progress.append(element);
  row.element = element;
  if (row.refocus && ended(row)) { row.refocus = false; element.querySelector("input")?.focus(); }
  view.clear.hidden = files.filter((item) => item.state === "done").length < 2;
}

const ended = (row) => !["sending", "reading", "queued", "waiting", "busy"].includes(row.state);

/** Remove the rows of files that are stored. The rows of failed files stay. */
function clear() {
  for (const row of files.filter((item) => item.state === "done")) { files.splice(files.indexOf(row), 1); row.element.remove(); }
  view.clear.hidden = true;
}

function draw() {
  if (!view) return;
  const wanted = view.filter.value.trim().toLocaleLowerCase();
  const alive = view.documents;
  const documents = wanted ? alive.filter((item) => item.name.toLocaleLowerCase().includes(wanted)) : alive;
  view.count.textContent = t("documents.count", { n: alive.length });
  view.filter.parentElement.hidden = alive.length < 2 && !wanted;
  if (!documents.length) {
    view.rows.replaceChildren(wanted ? empty(t("documents.no.match"), t("documents.no.match.todo")) : empty(t("documents.none"), t("documents.none.todo")));
    return;
  }
  const more = documents.length > view.drawn ? h("p", { class: "muted center" }, t("loading")) : null;
  view.rows.replaceChildren(h("ul", { class: "plain rows", "aria-label": t("nav.documents") }, documents.slice(0, view.drawn).map(line)), ...(more ? [more] : []));
  view.watch.disconnect();
  if (more) view.watch.observe(more);
}

function line(item) {
  const [good, part] = [item.status === "ready", missing(item)];
  const facts = [item.pages ? t("pages", { n: item.pages }) : "", item.chunks ? t("chunks", { n: item.chunks }) : "", size(item.bytes)].filter(Boolean).join(" · ");
  return h("li", { class: "row line" },
    h("button", { type: "button", class: "line-main", onclick: (event) => openSource({ document_id: item.id, document: item.name, page: null, start: 0, end: 0 }, event.currentTarget) },
      fileName(item.name, { class: "line-name" }), h("span", { class: "muted small" }, facts),
      good ? null : h("span", { class: `badge ${item.status}` }, t(`status.${item.status}`)), part,
      part || !good ? h("span", { class: "small reason" }, why(item)) : null),
    view.changes && iconButton("trash", t("documents.delete", { name: item.name }), () => erase(item)));
}

/** Delete a document. The server hides it at once and deletes it after `UNDO` seconds, even if this page is closed. */
async function erase(item) {
  const rest = view.documents.filter((other) => other.id !== item.id);
  const place = view.documents.indexOf(item);
  Object.assign(view, { documents: rest, known: "" });
  draw();
  closeSource((id) => id === item.id);
  try { offer(await remove(`/api/rag/documents/${item.id}`, { undo_seconds: UNDO })); } catch (error) {
    if (error.status !== 404 && view) { view.documents.splice(place, 0, item); draw(); }
    toast(error.message, { error: true });
  }
}

/** Show a button that undoes a deletion or a replacement, until the server deletes the document: in the row of the file that has replaced it, or else in a message. */
function offer({ id, name, seconds_left: left, replaced_by: successor }) {
  offered.get(id)?.close();
  const row = successor && files.find((item) => item.document?.id === successor);
  const undo = async () => {
    shown.close();
    close();
    try {
      await remove(`/api/rag/removals/${id}`);
      if (row) row.state = "undone";
      toast(t(successor ? "undone.replaced" : "undone", { name }));
    } catch (error) { toast({ 404: t("undo.late", { name }), 409: t("undo.newer", { name }) }[error.status] || error.message, { error: true }); }
    if (row) render(row);
    load();
  };
  const close = () => { if (offered.get(id) === shown) offered.delete(id); if (row?.undo === undo) { row.undo = null; if (files.includes(row)) render(row); } };
  const shown = row ? { close } : toast(t(successor ? "replaced" : "deleted", { name }), { action: t("undo"), label: `${t("undo")}: ${name}`, seconds: left, onaction: undo });
  if (row) { row.undo = undo; render(row); }
  offered.set(id, shown);
  setTimeout(close, left * 1000);
}

/** Show buttons that undo deletions and replacements from before this page was loaded, or of the files of this page. */
async function offerEarlier() {
  const { removals } = await list("/api/rag/removals").catch(() => ({ removals: [] }));
  const soon = ({ replaced_by: id }) => id && !files.every(ended) && !files.some((row) => row.document?.id === id); // its row does not have the result yet
  for (const removal of removals) if (!offered.has(removal.id) && removal.seconds_left > 1 && !soon(removal)) offer(removal);
}

for (const name of ["focus", "agentformer:gone"]) addEventListener(name, () => { if (!keyMissing()) load(); });
addEventListener("beforeunload", (event) => { if (files.some((row) => row.file && ["waiting", "sending"].includes(row.state))) event.preventDefault(); });
