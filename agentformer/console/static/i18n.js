// The language of the page: the texts, and the formats of numbers, dates and sizes.

export const LANGUAGES = { en: "English", fi: "Suomi" };
const stored = localStorage.getItem("agentformer.language");
export const language = LANGUAGES[stored] ? stored : (navigator.languages.find((name) => LANGUAGES[name.slice(0, 2)]) || "en").slice(0, 2);
const texts = (await import(`./${language}.js`)).default; // only this language is loaded; a test compares the keys of all

document.documentElement.lang = language;

/** Return the text of a key. `{name}` is replaced by a value, and the value `n` chooses between `one|many`. */
export function t(key, values = {}) {
  let text = texts[key] ?? key;
  if (text.includes("|") && values.n !== undefined) text = text.split("|")[values.n === 1 ? 0 : 1];
  return text.replace(/\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? number(values[name]) : values[name] ?? ""));
}

/** Return the name of `word` in the group `sort`, such as a kind of memory. Return `word` itself if the page has no name for it. */
export function nameOf(sort, word) {
  return texts[`${sort}.${word}`] ?? word;
}

/** Return the name of a kind of memory. Agents may use any word. */
export const kindName = (kind) => nameOf("kind", kind);

export function choose(name) {
  localStorage.setItem("agentformer.language", name);
  location.reload();
}

export function number(value, digits = 0) {
  return new Intl.NumberFormat(language, { maximumFractionDigits: digits }).format(value);
}

export function percent(value) {
  return new Intl.NumberFormat(language, { style: "percent" }).format(value);
}

export function date(text, options = { dateStyle: "medium", timeStyle: "short" }) {
  const value = text ? new Date(text) : null;
  return value && !Number.isNaN(value.valueOf()) ? new Intl.DateTimeFormat(language, options).format(value) : "";
}

export function size(bytes) {
  const units = ["byte", "kilobyte", "megabyte", "gigabyte"];
  const step = Math.min(3, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  return new Intl.NumberFormat(language, { style: "unit", unit: units[step], unitDisplay: step ? "short" : "long", maximumFractionDigits: step ? 1 : 0 }).format(bytes / 1000 ** step);
}

export function seconds(value) {
  return value < 90 ? t("seconds", { n: Math.max(1, Math.round(value)) }) : t("minutes", { n: Math.round(value / 60) });
}
