// The panel beside the answer: the source of a citation, with the quoted words highlighted.

import { get, send } from "./api.js";
import { h, iconButton, parted, toast } from "./dom.js";
import { date, kindName, t } from "./i18n.js";
import { why } from "./reasons.js";

const panel = document.getElementById("panel");
let opener = null;
let shown = 0; // the number of the last request, so that a slow page does not replace a newer one
let picture = null;
let source = null; // the id of the document that the panel shows

export function closePanel() {
  if (panel.hidden) return;
  panel.hidden = true;
  panel.replaceChildren();
  document.body.classList.remove("with-panel");
  if (picture) URL.revokeObjectURL(picture);
  picture = source = null;
  shown += 1;
  (opener?.isConnected ? opener : document.getElementById("main")).focus({ preventScroll: true });
}

/** Close the panel if `gone(id)` is true for the document in the panel. */
export function closeSource(gone) {
  if (source && gone(source)) closePanel();
}

/** Open a citation or a hit. The element `from` gets the focus back when the panel closes. */
export async function openSource(citation, from) {
  opener = from;
  source = citation.document_id || null;
  panel.hidden = false;
  document.body.classList.add("with-panel");
  panel.setAttribute("aria-label", t("source"));
  if (citation.document_id) await openPage(citation, { number: citation.page || 1, page: citation.page });
  else await openMemory(citation);
}

/** Return what a page has besides its number: its printed number if that is another, or its name. The form is that of `text/places.py`. */
function besides(page, label) {
  if (!label || label === String(page)) return "";
  return ` (${/^[0-9ivxlcdm.-]{1,8}$/i.test(label) ? t("page.printed", { label }) : label})`;
}

/** Return a place in a document: "rules.pdf, page 5 (printed iii)", or "a.py (lines 3-9)". */
export function placeName(document, page, label) {
  const lines = /^([^]*?)lines (\d+)-(\d+)$/.exec(label || "");
  if (lines) return `${document} (${lines[1]}${t("page.lines", { first: lines[2], last: lines[3] })})`;
  return [document, page ? t("page.number", { page: String(page) }) + besides(page, label) : label].filter(Boolean).join(", ");
}

function frame(title, subtitle, tools, body, { quote, headings } = {}) {
  const heading = h("h2", { tabindex: "-1" }, title);
  panel.replaceChildren(
    h("header", { class: "panel-head" }, h("div", { class: "grow" }, heading, h("p", { class: "muted" }, subtitle)), tools,
      iconButton("close", t("close"), closePanel)),
    ...(headings ? [h("p", { class: "headings muted small" }, headings)] : []), ...(quote ? [h("blockquote", { class: "quote" }, quote)] : []), body);
  if (!panel.contains(document.activeElement)) heading.focus({ preventScroll: true });
  return heading;
}

/** Open the panel with this content. The element `from` gets the focus back when the panel closes. */
export function showPanel(title, subtitle, from, ...content) {
  opener = from;
  panel.hidden = false;
  document.body.classList.add("with-panel");
  panel.setAttribute("aria-label", title);
  source = null;
  shown += 1;
  frame(title, subtitle, null, h("div", { class: "panel-body" }, content));
}

async function openPage(citation, place) {
  const mine = (shown += 1);
  const cited = place.number === (citation.page || 1);
  const range = cited ? { start: citation.start, end: citation.end } : { start: 0, end: 0 };
  const there = `/api/rag/documents/${encodeURIComponent(citation.document_id)}`;
  const body = h("div", { class: "page", "aria-busy": "true" }, h("p", { class: "muted" }, t("loading")));
  frame(citation.document, "", null, body, cited ? citation : {});
  try {
    const [info, { pages }] = await Promise.all([get(there), get(`${there}/pages`, { limit: 1, page: place.number })]);
    if (mine !== shown) return;
    const stored = pages[0];
    const pdf = info.media_type === "application/pdf";
    const where = pdf || info.pages > 1 ? t("page.of", { page: String(place.number), pages: info.pages }) + besides(place.number, stored?.label) : "";
    const asImage = pdf && !place.text;
    const move = (step) => openPage(citation, { ...place, number: place.number + step });
    const tools = h("div", { class: "row tight tools-of-page" },
      asImage ? [iconButton("minus", t("page.smaller"), () => zoom(body, -1)), iconButton("plus", t("page.larger"), () => zoom(body, 1))] : null,
      info.pages > 1 ? iconButton("previous", t("page.previous"), () => move(-1), { disabled: place.number <= 1 }) : null,
      info.pages > 1 ? iconButton("next", t("page.next"), () => move(1), { disabled: place.number >= info.pages }) : null,
      iconButton("download", t("download"), () => download(there, info.name)));
    frame(citation.document, where, tools, body, cited ? citation : {});
    const unread = stored && stored.status !== "text" ? [h("p", { class: "note" }, why(stored))] : [];
    const words = () => body.replaceChildren(...unread, marked(stored?.text ?? "", range.start, range.end));
    if (!asImage) words();
    else await image(body, there, place.number, range, words, () => mine === shown);
    if (mine !== shown) return;
    body.removeAttribute("aria-busy");
    if (pdf) panel.append(h("p", { class: "row panel-foot" }, h("button", { type: "button", class: "link", onclick: () => openPage(citation, { ...place, text: !place.text }) },
      place.text ? t("page.image") : t("page.text"))));
    panel.querySelector("mark, .box")?.scrollIntoView({ block: "center", inline: "nearest" });
  } catch (error) {
    if (error.status === 404) dispatchEvent(new Event("agentformer:gone")); // another tab or program has deleted it
    if (mine === shown) body.replaceChildren(h("p", { class: "note error", role: "alert" }, error.message));
  }
}

async function image(body, there, page, range, words, current) {
  let answer;
  try { answer = await get(`${there}/image`, { page, ...range }); } catch (error) {
    if (!current()) return;
    words();
    const locked = error.body?.reason_code === "password_needed";
    body.prepend(h("p", { class: "note" }, locked ? t("page.locked") : error.kind === "unreadable-document" ? [t("page.no.image"), " ", ...why({ reason: error.message, ...error.body })] : error.message));
    return;
  }
  if (!current()) return;
  const bytes = Uint8Array.from(atob(answer.png), (letter) => letter.charCodeAt(0));
  if (picture) URL.revokeObjectURL(picture);
  picture = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 1 1");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const [left, top, right, bottom] of answer.boxes) {
    const box = document.createElementNS(svg.namespaceURI, "rect");
    for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top, class: "box" })) box.setAttribute(name, value);
    svg.append(box);
  }
  const img = h("img", { src: picture, width: answer.width, height: answer.height, alt: t("page.alt", { page }) });
  body.replaceChildren(h("div", { class: "sheet-frame", tabindex: "0", role: "region", "aria-label": t("source") }, h("figure", { class: "sheet" }, img, svg)),
    ...(range.end > range.start && !answer.boxes.length ? [h("p", { class: "note" }, t("page.unmarked"))] : []));
  await img.decode().catch(() => {});
}

const ZOOMS = [1, 1.5, 2, 3, 4];

/** Make the image of the page larger (`step` is 1) or smaller (-1). The marked words, or else the middle, stay in view. */
function zoom(body, step) {
  const sheet = body.querySelector(".sheet");
  if (!sheet) return;
  const place = Math.min(ZOOMS.length - 1, Math.max(0, Number(sheet.dataset.zoom || 0) + step));
  sheet.dataset.zoom = place;
  sheet.style.setProperty("inline-size", `${100 * ZOOMS[place]}%`);
  const [scroller, box] = [sheet.parentElement, sheet.querySelector(".box")];
  if (box) box.scrollIntoView({ block: "center", inline: "center" });
  else scroller.scrollLeft = (scroller.scrollWidth - scroller.clientWidth) / 2;
}

/** Return a text with one part highlighted. */
export function marked(text, start, end) {
  const [before, part, after] = parted(text, start, end);
  return h("div", { class: "source-text", tabindex: "0", role: "region", "aria-label": t("source.text") }, before, part ? h("mark", {}, part) : null, after);
}

async function openMemory(citation) {
  const mine = (shown += 1);
  const body = h("div", { class: "page", "aria-busy": "true" }, h("p", { class: "muted" }, t("loading")));
  const title = citation.title || kindName(citation.kind);
  const about = [citation.speaker, date(citation.at)].filter(Boolean).join(" · ");
  frame(title, about, null, body, citation);
  try {
    const entry = await get(`/api/memory/${encodeURIComponent(citation.entry_id)}`);
    if (mine !== shown) return;
    const originals = citation.originals || [];
    body.replaceChildren(marked(entry.content, citation.start, citation.end),
      ...(originals.length ? [h("h3", {}, t("originals")), h("ol", { class: "plain" }, await Promise.all(originals.slice(0, 20).map(original)))] : []));
    body.removeAttribute("aria-busy");
  } catch (error) {
    if (mine === shown) body.replaceChildren(h("p", { class: "note error", role: "alert" }, error.message));
  }
}

async function original(id) {
  const entry = await get(`/api/memory/${encodeURIComponent(id)}`);
  return h("li", {}, h("p", { class: "muted" }, [entry.speaker, date(entry.occurred_at || entry.created_at)].filter(Boolean).join(" · ")), h("p", { class: "text" }, entry.content));
}

async function download(there, name) {
  try {
    const response = await send("GET", `${there}/content`);
    const url = URL.createObjectURL(await response.blob());
    h("a", { href: url, download: name.split("/").pop() }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  } catch (error) { toast(error.message, { error: true }); }
}

addEventListener("keydown", (event) => { if (event.key === "Escape" && !document.querySelector("dialog[open]")) closePanel(); });
