// The reasons why a file or a page has no usable text, in the language of the page. The server sends a code for each.

import { h } from "./dom.js";
import { nameOf, t } from "./i18n.js";

// Codes whose text of the server names what the code cannot: a limit, a part of the file.
const DETAILED = ["too_large", "unreadable", "parts_unread", "invalid", "conflict", "server"];

/** Return the reason of a document, of a page or of a refused file. `problem` is the kind of a refused request. */
export function why({ reason = "", reason_code: code = "", unread_pages: unread = 0, pages = 0, former_kept: kept = false, problem = "" }) {
  const name = problem || code;
  const known = nameOf(problem ? "problem" : "reason", name);
  const said = known === name ? "" : known; // the page has no text for this code
  const detail = reason && (!said || DETAILED.includes(code)) ? h("span", { lang: "en", class: "detail" }, reason.replace(/[^.!?]$/, "$&.")) : null;
  const parts = [unread && pages ? t("reason.pages", { n: unread, pages }) : "", said, detail, kept ? t("reason.former_kept") : ""];
  return parts.filter(Boolean).flatMap((part) => [part, " "]).slice(0, -1);
}

/** Return a badge for what is missing of a document that is found by questions, or null. */
export function missing(item) {
  if (!["ready", "pending"].includes(item.status)) return null;
  const text = item.unread_pages ? t("documents.missing", { n: item.unread_pages }) : item.reason_code === "parts_unread" ? t("documents.parts") : "";
  return text ? h("span", { class: "badge partial" }, text) : null;
}
