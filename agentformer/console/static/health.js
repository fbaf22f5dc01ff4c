// Health: the state of the server, its stored data, its models and nodes, the check of the stored data, and the keys.

import { Problem, get, keyMissing, post, send } from "./api.js";
import { h, icon, toast } from "./dom.js";
import { date, kindName, nameOf, number, size, t } from "./i18n.js";
import { keys } from "./keys.js";

const EVERY = 5000; // milliseconds between two requests
const CHECKING = 1000; // milliseconds between two requests while a check is running

export async function show(main) {
  const state = h("div", {}, h("p", { class: "muted" }, t("loading")));
  const more = h("div", {});
  main.append(h("header", { class: "view-head" }, h("h1", {}, t("nav.health"))), h("div", { class: "health" }, state, more));
  let [shown, stopped] = ["", false];
  const look = async () => {
    const [parts, status, waiting, nodes] = await Promise.all([ready(), get("/api/status").catch((error) => error), jobs(), get("/api/nodes").catch(() => null)]);
    const next = JSON.stringify([parts, status, waiting, nodes]);
    if (next === shown || stopped) return;
    shown = next;
    state.replaceChildren(...[states(parts), status instanceof Error ? h("p", { class: "note" }, status.message) : facts(status, waiting, nodes)].flat());
  };
  await look();
  more.append(...[await doctor(() => stopped), await keys()].flat());
  const timer = setInterval(() => { if (!keyMissing() && !document.hidden) look().catch(() => {}); }, EVERY);
  return () => { stopped = true; clearInterval(timer); };
}

async function ready() {
  try { return (await (await send("GET", "/readyz")).json()).parts; } catch (error) {
    if (error instanceof Problem && error.body.parts) return error.body.parts;
    throw error;
  }
}

async function jobs() {
  try { return (await get("/api/jobs", { limit: 200 })).jobs.filter((job) => ["queued", "running"].includes(job.state)).length; } catch { return null; }
}

function states(parts) {
  return h("ul", { class: "plain cards" }, Object.entries(parts).map(([name, state]) => {
    const good = state === "ok" ? "good" : state === "busy" || state.startsWith("not used") ? "idle" : "bad";
    const words = good === "good" ? t("health.ok") : state === "busy" ? t("health.busy") : good === "idle" ? t("health.unused") : state;
    return h("li", { class: `card ${good}` }, h("span", { class: "dot", "aria-hidden": "true" }), h("div", {}, h("h2", {}, t(`health.${name}`)), h("p", { class: "muted small" }, words)));
  }));
}

function group(title, rows) {
  const shown = rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return shown.length ? h("section", {}, h("h3", {}, title), h("dl", { class: "table" }, shown.map(([name, value, bad]) => h("div", {}, h("dt", {}, h("bdi", {}, name)), h("dd", { class: bad ? "error-text" : "" }, value))))) : [];
}

function facts(status, waiting, nodes) {
  const stored = status.backends ? Object.values(status.backends)[0] : status;
  const { index = {}, cleaner = {}, spaces = [], providers = {} } = { ...stored, ...status };
  const kinds = Object.entries(stored.kinds || {}).sort((a, b) => b[1] - a[1]).map(([name, count]) => `${kindName(name)} ${number(count)}`).join(" · ");
  const made = Object.entries(cleaner.outcomes || {}).filter(([, count]) => count).map(([name, count]) => `${nameOf("outcome", name)} ${number(count)}`).join(" · ");
  return [
    group(t("health.stored"), [[t("health.entries"), number(stored.entries ?? 0)], [t("health.kinds"), kinds], [t("health.pending"), number(stored.pending ?? 0), stored.pending > 0], [t("health.jobs"), waiting === null ? "" : number(waiting)], [t("health.disk"), stored.disk_bytes ? size(stored.disk_bytes) : ""]]),
    group(t("health.index"), [[t("health.stage"), index.stage && nameOf("stage", index.stage)], [t("health.rows"), index.rows === undefined ? "" : number(index.rows)], [t("health.recall"), index.recall ? number(index.recall, 3) : ""], [t("health.memory"), index.memory_bytes ? size(index.memory_bytes) : ""], [t("health.training"), index.training ? t("yes") : ""], [t("health.problem"), index.problem, true]]),
    group(t("health.spaces"), spaces.map((space) => [space.spec, [nameOf("space", space.state), t("health.vectors", { n: space.vectors }), size(space.bytes)].join(" · ")])),
    group(t("health.providers"), Object.entries(providers).map(([name, use]) => [name, used(use), Boolean(use.last_error)])),
    group(t("health.cleaner"), [[t("health.last"), cleaner.last_run ? date(typeof cleaner.last_run === "string" ? cleaner.last_run : cleaner.last_run.at) : t("never")], [t("health.made"), made], [t("health.queued"), number(cleaner.queued ?? 0)], [t("health.problem"), cleaner.last_error, true]]),
    group(t("health.nodes"), (nodes?.nodes || []).map((node) => [node.name, [nameOf("role", node.role), t(node.alive ? "health.alive" : "health.dead"), t("health.embedded", { n: node.embedded })].join(" · "), !node.alive])),
  ].flat();
}

function used(use) {
  const failed = Object.values(use.errors || {}).reduce((sum, count) => sum + count, 0);
  return [t("health.calls", { n: use.calls }), use.calls ? `${number(use.mean_ms, 1)} ms` : "", failed ? t("health.failed", { n: failed }) : "", use.last_error].filter(Boolean).join(" · ");
}

/** Return the section with the check of the stored data and its results. */
async function doctor(stopped) {
  let last;
  try { last = await get("/api/checks"); } catch { return []; }
  const place = h("section", { class: "doctor" });
  const draw = () => {
    const running = last.state === "running";
    const start = h("button", { type: "button", disabled: running, onclick: async () => {
      try { last = await post("/api/checks"); draw(); follow(); } catch (error) { toast(error.message, { error: true }); }
    } }, t(running ? "doctor.running" : "doctor.start"));
    place.replaceChildren(h("div", { class: "row section-head" }, h("h3", { class: "grow" }, t("doctor")), start), ...findings(last));
  };
  const follow = async () => {
    while (last.state === "running" && !stopped()) {
      await new Promise((done) => setTimeout(done, CHECKING));
      if (keyMissing()) continue;
      last = await get("/api/checks").catch(() => last);
    }
    draw();
  };
  draw();
  follow();
  return place;
}

function findings(last) {
  if (last.state === "failed") return [h("p", { class: "note error", role: "alert" }, last.problem)];
  if (last.well === null) return [h("p", { class: "muted small" }, t("doctor.never"))];
  const at = t("doctor.at", { date: date(last.finished_at) });
  const wrong = last.checks.filter((check) => check.found > check.mended);
  const notes = last.checks.filter((check) => check.found <= check.mended && check.findings.length);
  const item = (check) => h("li", {}, h("p", {}, h("strong", {}, t("doctor.broken", { asked: check.asked })), " ", h("span", { class: "muted" }, t("doctor.wrong", { n: check.found, all: number(check.looked_at) }))),
    h("ul", {}, check.findings.map((text) => h("li", {}, text)), check.found > check.findings.length ? h("li", { class: "muted" }, t("doctor.more", { n: check.found - check.findings.length })) : null));
  return [
    h("p", { class: `row small ${last.well ? "good" : "bad"}`, role: "status" }, h("span", { class: "dot", "aria-hidden": "true" }), h("span", {}, last.well ? t("doctor.well", { n: last.checks.length }) : t("doctor.ill", { n: wrong.length })), h("span", { class: "muted" }, at)),
    wrong.length ? h("div", { class: "note error" }, h("ul", { class: "plain findings" }, wrong.map(item)), h("p", {}, t("doctor.repair")), h("p", {}, h("code", {}, "agentformer doctor --repair"))) : null,
    notes.length ? h("div", { class: "note" }, h("ul", {}, notes.flatMap((check) => check.findings.map((text) => h("li", {}, text))))) : null,
    h("details", {}, h("summary", {}, t("doctor.all", { n: last.checks.length })), h("ul", { class: "plain rows small" }, last.checks.map((check) => h("li", { class: "row line check-line" }, icon(check.found > check.mended ? "warning" : "check"), h("span", { class: "grow" }, check.asked), h("span", { class: "muted" }, number(check.looked_at)))))),
  ].filter(Boolean);
}
