// Map: the entries as points. Similar entries are near each other. The entries in a selected area can be listed and searched.

import { list, postWithin } from "./api.js";
import { empty, h, iconButton } from "./dom.js";
import { kindName, number, percent, t } from "./i18n.js";
import { found, line, look, rows } from "./entry.js";

const COLOURS = 8; // further groups share one colour
const NEAR = 9; // largest distance in pixels between the pointer and the point whose entry is shown
const LISTED = 20; // selected entries that are listed at a time
const MOST = 20000; // most ids in the filter of a search
const ASK_AGAIN = 700; // milliseconds between two requests while the map is computed
const STEP = 0.04; // share of the shown width by which a key moves the frame

let map; // the response of the server
let colouring = "kind";
let view = { x: 0, y: 0, size: 1 }; // the shown part of the map; the whole map is 0 to 1
let moving = false; // true if dragging moves the map, false if it selects
let selected = []; // indexes of points
let groups = []; // { name, count, other }; the item `other` contains all further groups
let groupOf; // index of the group of each point
let parts; // the elements of the page
let frame = null; // the selected area; 0 to 1 is the shown part of the map
let texts = new Map();
let stopped = false;

export async function show(main) {
  [map, selected, view, frame, moving, texts, stopped] = [null, [], { x: 0, y: 0, size: 1 }, null, false, new Map(), false];
  const about = h("p", { class: "muted" }, t("loading"));
  const place = h("div", {});
  main.append(h("header", { class: "view-head" }, h("h1", {}, t("nav.map"))), about, place);
  const load = async (renew = false) => {
    for (;;) {
      const next = await list("/api/memory/map", renew ? { renew: true } : {});
      renew = false;
      if (stopped) return;
      if (next.ids.length || next.state !== "computing") { map = next; draw(main, about, place, load); }
      if (next.state !== "computing") return;
      if (!map) about.textContent = t("map.computing");
      await new Promise((done) => setTimeout(done, ASK_AGAIN));
      if (stopped) return;
    }
  };
  await load();
  const resized = new ResizeObserver(() => paint());
  resized.observe(place);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const recolour = () => requestAnimationFrame(paint);
  dark.addEventListener("change", recolour);
  const themed = new MutationObserver(recolour);
  themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  return () => { stopped = true; resized.disconnect(); themed.disconnect(); dark.removeEventListener("change", recolour); parts = null; };
}

function draw(main, about, place, load) {
  if (map.state === "failed") { about.textContent = ""; place.replaceChildren(h("p", { class: "note error", role: "alert" }, map.problem)); return; }
  if (!map.ids.length) { about.textContent = ""; place.replaceChildren(empty(t("map.none"), t("map.none.todo"))); return; }
  const some = map.ids.length < map.total ? t("map.part", { n: map.ids.length, total: map.total }) : t("map.points", { n: map.ids.length });
  about.textContent = `${some} · ${t("map.about", { share: percent(map.explained) })}`;
  const choose = h("select", { "aria-label": t("map.colour"), onchange: (event) => { colouring = event.target.value; group(); paint(); } },
    ["kind", "tier", "document", "session"].map((name) => h("option", { value: name, selected: name === colouring }, t(`map.by.${name}`))));
  const mode = h("button", { type: "button", "aria-pressed": "false", onclick: () => { moving = !moving; mode.setAttribute("aria-pressed", String(moving)); parts.canvas.classList.toggle("moving", moving); } }, t("map.move"));
  const canvas = h("canvas", { class: "map", tabindex: "0", role: "application", "aria-label": t("map.label"), "aria-describedby": "map-keys" });
  parts = { canvas, legend: h("ul", { class: "plain legend", "aria-label": t("map.groups") }), tip: h("p", { class: "tip", hidden: true }), said: h("p", { class: "muted small", "aria-live": "polite" }, t("map.select")), chosen: h("div", {}) };
  place.replaceChildren(
    h("div", { class: "row map-tools" }, h("label", { class: "row small" }, t("map.colour"), choose), h("span", { class: "grow" }), mode,
      iconButton("minus", t("map.out"), () => zoom(0.5, 0.5, 1.5)), iconButton("plus", t("map.in"), () => zoom(0.5, 0.5, 1 / 1.5)), iconButton("whole", t("map.whole"), () => { view = { x: 0, y: 0, size: 1 }; paint(); }),
      iconButton("renew", t("map.renew"), () => load(true))),
    h("div", { class: "map-box" }, canvas, parts.tip), h("p", { class: "small muted", id: "map-keys" }, t("map.keys")), parts.legend, parts.said, parts.chosen);
  listen(canvas);
  group();
  paint();
}

/** Divide the points into groups by the selected property. The largest groups have different colours. */
function group() {
  const names = { kind: map.kinds.map(kindName), tier: map.tiers.map((name) => t(`tier.${name}`)), document: map.documents.map((item) => item.name || t("map.unnamed")), session: map.sessions }[colouring];
  const column = map[colouring];
  const counts = new Map();
  for (const value of column) counts.set(value, (counts.get(value) || 0) + 1);
  const order = [...counts.keys()].filter((value) => value >= 0).sort((a, b) => counts.get(b) - counts.get(a));
  const own = order.slice(0, COLOURS);
  groups = own.map((value) => ({ name: names[value], count: counts.get(value) }));
  const rest = column.length - groups.reduce((sum, item) => sum + item.count, 0);
  if (rest) groups.push({ name: order.length > COLOURS ? t("map.others") : t(`map.without.${colouring}`), count: rest, other: true });
  const places = new Map(own.map((value, place) => [value, place]));
  groupOf = Uint8Array.from(column, (value) => places.get(value) ?? own.length);
  parts.legend.replaceChildren(...groups.map((item, place) => h("li", {}, h("button", { type: "button", class: "quiet", title: t("map.pick"), onclick: () => select(Array.from(groupOf.keys()).filter((point) => groupOf[point] === place)) },
    h("span", { class: `swatch ${item.other ? "c-other" : `c${place}`}`, "aria-hidden": "true" }), h("bdi", {}, item.name), h("span", { class: "muted" }, number(item.count))))));
}

/** Return the position of a point on the canvas, in pixels. There is some space at the edges of the map. */
function at(point, width, height) {
  const inner = (value) => 0.03 + 0.94 * (value / map.scale);
  return [((inner(map.x[point]) - view.x) / view.size) * width, ((1 - inner(map.y[point]) - view.y) / view.size) * height];
}

function paint() {
  if (!parts || !map?.ids.length || !parts.canvas.isConnected) return;
  const { canvas, legend } = parts;
  performance.mark("map-start");
  const [width, height, density] = [canvas.clientWidth, canvas.clientHeight, Math.min(2, devicePixelRatio || 1)];
  if (!width) return;
  if (canvas.width !== Math.round(width * density) || canvas.height !== Math.round(height * density)) [canvas.width, canvas.height] = [Math.round(width * density), Math.round(height * density)];
  const pen = canvas.getContext("2d");
  pen.setTransform(density, 0, 0, density, 0, 0);
  pen.clearRect(0, 0, width, height);
  const colours = [...legend.querySelectorAll(".swatch")].map((swatch) => getComputedStyle(swatch).backgroundColor);
  const many = map.ids.length > 3000;
  const radius = (many ? 1.6 : 3) * Math.min(2, 1 / Math.sqrt(view.size));
  const chosen = selected.length ? new Uint8Array(map.ids.length) : null;
  for (const point of selected) chosen[point] = 1;
  for (const bright of chosen ? [false, true] : [true]) {
    const paths = groups.map(() => new Path2D());
    for (let point = 0; point < map.ids.length; point += 1) {
      if (chosen && Boolean(chosen[point]) !== bright) continue;
      const [x, y] = at(point, width, height);
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      const path = paths[groupOf[point]];
      if (many) path.rect(x - radius, y - radius, 2 * radius, 2 * radius);
      else { path.moveTo(x + radius, y); path.arc(x, y, radius, 0, 2 * Math.PI); }
    }
    pen.globalAlpha = bright ? 0.85 : 0.22;
    paths.forEach((path, place) => { pen.fillStyle = colours[place]; pen.fill(path); });
  }
  pen.globalAlpha = 1;
  if (frame) {
    pen.strokeStyle = getComputedStyle(canvas).color;
    pen.setLineDash([5, 4]);
    pen.strokeRect(frame.x * width, frame.y * height, frame.width * width, frame.height * height);
  }
  performance.measure("map", "map-start");
}

function zoom(x, y, factor) {
  const size = Math.min(1, Math.max(0.02, view.size * factor));
  const keep = (start, part) => Math.min(1 - size, Math.max(0, start + part * (view.size - size)));
  view = { x: keep(view.x, x), y: keep(view.y, y), size };
  paint();
}

function nearest(x, y, width, height) {
  let [best, least] = [-1, NEAR * NEAR];
  for (let point = 0; point < map.ids.length; point += 1) {
    const [left, top] = at(point, width, height);
    const distance = (left - x) ** 2 + (top - y) ** 2;
    if (distance < least) [best, least] = [point, distance];
  }
  return best;
}

function within(area) {
  const chosen = [];
  for (let point = 0; point < map.ids.length; point += 1) {
    const [x, y] = at(point, 1, 1);
    if (x >= area.x && x <= area.x + area.width && y >= area.y && y <= area.y + area.height) chosen.push(point);
  }
  return chosen;
}

function listen(canvas) {
  let start = null;
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]; };
  canvas.addEventListener("pointerdown", (event) => { if (event.button === 0) { start = { at: place(event), view: { ...view } }; canvas.setPointerCapture(event.pointerId); hideTip(); } });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!start) { hover(event, x, y); return; }
    if (moving) {
      const keep = (value) => Math.min(1 - view.size, Math.max(0, value));
      view = { ...view, x: keep(start.view.x - (x - start.at[0]) * view.size), y: keep(start.view.y - (y - start.at[1]) * view.size) };
    } else frame = { x: Math.min(x, start.at[0]), y: Math.min(y, start.at[1]), width: Math.abs(x - start.at[0]), height: Math.abs(y - start.at[1]) };
    requestAnimationFrame(paint);
  });
  const end = (event) => {
    if (!start) return;
    const area = frame;
    start = null;
    frame = null;
    if (moving) return;
    if (area && area.width * canvas.clientWidth > 4 && area.height * canvas.clientHeight > 4) { select(within(area)); return; }
    const [x, y] = place(event);
    const point = nearest(x * canvas.clientWidth, y * canvas.clientHeight, canvas.clientWidth, canvas.clientHeight);
    select(point < 0 ? [] : [point]);
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", () => { start = null; frame = null; paint(); });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); hideTip(); zoom(...place(event), event.deltaY > 0 ? 1.2 : 1 / 1.2); }, { passive: false });
  canvas.addEventListener("keydown", keys);
  canvas.addEventListener("blur", () => { frame = null; paint(); });
}

/** Move, resize and use the frame with the keyboard. */
function keys(event) {
  frame ??= { x: 0.35, y: 0.35, width: 0.3, height: 0.3 };
  const step = event.shiftKey ? 5 * STEP : STEP;
  const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
  const grows = { "+": 1.2, "=": 1.2, "-": 1 / 1.2 };
  if (moves[event.key]) {
    frame.x = Math.min(1 - frame.width / 2, Math.max(-frame.width / 2, frame.x + moves[event.key][0]));
    frame.y = Math.min(1 - frame.height / 2, Math.max(-frame.height / 2, frame.y + moves[event.key][1]));
  } else if (grows[event.key]) {
    const size = Math.min(1, Math.max(0.04, frame.width * grows[event.key]));
    frame = { x: frame.x + (frame.width - size) / 2, y: frame.y + (frame.height - size) / 2, width: size, height: size };
  } else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(within(frame)); return; } else if (event.key === "Escape" && selected.length) { select([]); return; } else return;
  event.preventDefault();
  paint();
}

let waiting = 0;

function hideTip() {
  clearTimeout(waiting);
  if (parts) parts.tip.hidden = true;
}

function hover(event, x, y) {
  const { canvas, tip } = parts;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const point = nearest(x * width, y * height, width, height);
  clearTimeout(waiting);
  if (point < 0) { tip.hidden = true; return; }
  waiting = setTimeout(async () => {
    const text = await textOf(map.ids[point]).catch(() => "");
    if (!parts || !text) return;
    const [left, top] = at(point, width, height);
    tip.replaceChildren(h("strong", {}, groups[groupOf[point]].name), h("span", {}, text));
    tip.hidden = false;
    tip.style.setProperty("inset-inline-start", "auto");
    tip.style.setProperty("left", `${Math.max(0, Math.min(left + 12, width - tip.offsetWidth - 4))}px`);
    tip.style.setProperty("top", `${top + 14 + tip.offsetHeight > height ? Math.max(0, top - tip.offsetHeight - 10) : top + 14}px`);
  }, texts.has(map.ids[point]) ? 0 : 90);
}

async function textOf(id) {
  if (!texts.has(id)) {
    const [entry] = await look([id]);
    texts.set(id, entry ? (entry.content.length > 220 ? `${entry.content.slice(0, 220)}…` : entry.content) : t("entry.gone"));
  }
  return texts.get(id);
}

function select(points) {
  selected = points;
  paint();
  parts.said.textContent = points.length ? t("map.selected", { n: points.length }) : t("map.select");
  parts.chosen.replaceChildren();
  if (points.length) chosen(points.map((point) => map.ids[point]));
}

/** Show the selected entries as a list, with a field to search among them. */
function chosen(ids) {
  const items = h("div", { "aria-live": "polite" });
  const field = h("input", { type: "search", name: "text", required: true, "aria-label": t("map.within"), placeholder: t("map.within") });
  const form = h("form", { class: "row search", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const { hits, warnings } = await postWithin("/api/memory/search", { text: field.value, limit: 20, where: { type: "in", key: "$id", value: ids.slice(0, MOST) } });
      items.replaceChildren(...warnings.map((text) => h("p", { class: "note warn" }, text)), hits.length ? rows(hits, (hit) => found(hit)) : empty(t("memory.search.none"), t("ask.none.todo")));
    } catch (error) { items.replaceChildren(h("p", { class: "note error", role: "alert" }, error.message)); }
  } }, field, h("button", { type: "submit", class: "primary" }, t("memory.search")),
  h("button", { type: "button", onclick: () => { select([]); parts.canvas.focus(); } }, t("map.clear")));
  const more = h("button", { type: "button", class: "link", onclick: () => next() }, t("map.more"));
  let shown = 0;
  const next = async () => {
    more.disabled = true;
    try {
      const entries = await look(ids.slice(shown, shown + LISTED));
      if (!shown) items.replaceChildren(h("ul", { class: "plain rows", "aria-label": t("map.list") }));
      shown += LISTED;
      more.remove();
      items.querySelector("ul").append(...entries.map((entry) => line(entry)));
      if (shown < ids.length) items.append(h("p", {}, more));
    } catch (error) { items.append(h("p", { class: "note error", role: "alert" }, error.message)); }
    more.disabled = false;
  };
  parts.chosen.append(form, items);
  next();
}
