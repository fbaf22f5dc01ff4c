// Health: whether the server can work, what it stores, its index, its models and the last cleaning.

import { Problem, get, send } from "./api.js";
import { h } from "./dom.js";
import { date, kindName, number, size, t } from "./i18n.js";

const EVERY = 5000; // milliseconds between two looks

export async function show(main) {
  const place = h("div", { class: "health" }, h("p", { class: "muted" }, t("loading")));
  main.append(h("header", { class: "view-head" }, h("h1", {}, t("nav.health"))), place);
  let shown = "";
  const look = async () => {
    const [parts, status, waiting] = await Promise.all([ready(), get("/api/status").catch((error) => error), jobs()]);
    const next = JSON.stringify([parts, status, waiting]);
    if (next === shown) return;
    shown = next;
    place.replaceChildren(...[states(parts), status instanceof Error ? h("p", { class: "note" }, status.message) : facts(status, waiting)].flat());
  };
  await look();
  const timer = setInterval(() => look().catch(() => {}), EVERY);
  return () => clearInterval(timer);
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
    return h("li", { class: `card ${good}` }, h("span", { class: "dot", "aria-hidden": "true" }), h("div", {}, h("h2", {}, t(`health.${name}`)), h("p", { class: "muted small" }, good === "good" ? t("health.ok") : state)));
  }));
}

function group(title, rows) {
  const shown = rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return shown.length ? h("section", {}, h("h3", {}, title), h("dl", { class: "table" }, shown.map(([name, value, bad]) => h("div", {}, h("dt", {}, h("bdi", {}, name)), h("dd", { class: bad ? "error-text" : "" }, value))))) : [];
}

function facts(status, waiting) {
  const stored = status.backends ? Object.values(status.backends)[0] : status;
  const { index = {}, cleaner = {}, spaces = [], providers = {} } = { ...stored, ...status };
  const kinds = Object.entries(stored.kinds || {}).sort((a, b) => b[1] - a[1]).map(([name, count]) => `${kindName(name)} ${number(count)}`).join(" · ");
  return [
    group(t("health.stored"), [[t("health.entries"), number(stored.entries ?? 0)], [t("health.kinds"), kinds], [t("health.pending"), number(stored.pending ?? 0), stored.pending > 0], [t("health.jobs"), waiting === null ? "" : number(waiting)]]),
    group(t("health.index"), [[t("health.stage"), index.stage], [t("health.rows"), index.rows === undefined ? "" : number(index.rows)], [t("health.recall"), index.recall ? number(index.recall, 3) : ""], [t("health.memory"), index.memory_bytes ? size(index.memory_bytes) : ""], [t("health.training"), index.training ? t("yes") : ""], [t("health.problem"), index.problem, true]]),
    group(t("health.spaces"), spaces.map((space) => [space.spec, [space.state, t("health.vectors", { n: space.vectors }), size(space.bytes)].join(" · ")])),
    group(t("health.providers"), Object.entries(providers).map(([name, use]) => [name, [t("health.calls", { n: use.calls }), use.calls ? `${number(use.mean_ms, 1)} ms` : "", use.last_error].filter(Boolean).join(" · "), Boolean(use.last_error)])),
    group(t("health.cleaner"), [[t("health.last"), cleaner.last_run ? date(typeof cleaner.last_run === "string" ? cleaner.last_run : cleaner.last_run.at) : t("never")], [t("health.queued"), number(cleaner.queued ?? 0)], [t("health.problem"), cleaner.last_error, true]]),
    h("p", { class: "muted small" }, t("health.doctor")),
  ].flat();
}
