// What the other files use: elements, requests, formats. Texts of rollouts are untrusted: they only ever become text
// nodes, never HTML.
"use strict";

const Ouro = {};

// Ouro.h("td.number", {title: "..."}, child, ...): an element; children are elements, texts, or null
Ouro.h = (name, given, ...children) => {
  const [tag, ...classes] = name.split(".");
  const svg = ["svg", "path", "line", "rect", "text", "circle", "g", "title"].includes(tag) && Ouro.h.drawing;
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined).map(
    (one) => (one instanceof Node ? one : String(one))));
  return made;
};

// the same for what is inside an <svg>
Ouro.draw = (...given) => {
  Ouro.h.drawing = true;
  try { return Ouro.h(...given); } finally { Ouro.h.drawing = false; }
};

Ouro.query = (fields) => {
  const found = new URLSearchParams();
  for (const [key, value] of Object.entries(fields)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined && one !== "") found.append(key, one);
  }
  return found.toString();
};

// an answer of the server; of a page that was exported, what stands in data.js
Ouro.ask = async (name, fields, signal) => {
  const address = `api/${name}?${Ouro.query(fields || {})}`;
  if (window.OURO_DATA) return Ouro.exported(name, fields || {}, address);
  return Ouro.read(await Ouro.fetch(address, {signal}));
};

// the answer to a JSON object
Ouro.post = async (name, asked) => Ouro.read(await Ouro.fetch(`api/${name}`, {method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(asked)}));

// the token of the address, kept where pages of this port alone read it: a cookie would be sent to every port
const given = new URLSearchParams(location.search).get("token");
if (given) {
  localStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname + location.hash);
}

Ouro.fetch = async (address, given) => {
  try {
    return await fetch(address, {...given, headers: {...given.headers, authorization: `Bearer ${localStorage.getItem("token")}`}});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer: its command has ended");
  }
};

Ouro.read = async (answer) => {
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error.message || found.error);
  return found;
};

// whether a page that was exported has an answer
Ouro.has = (name, fields) => `api/${name}?${Ouro.query(fields)}` in window.OURO_DATA;

Ouro.exported = (name, fields, address) => {
  if (name === "rows") return OuroRollouts.exportedRows(fields);
  const found = window.OURO_DATA[address];
  if (found === undefined) throw new Error("not part of this exported page");
  return found;
};

Ouro.duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60);
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};

Ouro.number = (value) => {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
};

Ouro.percent = (value) => `${(100 * value).toFixed(1)}%`;

// a table whose headings sort it: columns are [heading, row -> cell, class]; csv: the name of the file that it is saved as
Ouro.table = (columns, rows, {csv, ...given} = {}) => {
  const body = Ouro.h("tbody", null, rows.map((row) => Ouro.h("tr", null, columns.map(
    ([, cell, kind]) => Ouro.h(kind ? `td.${kind}` : "td", null, cell(row))))));
  const heads = columns.map(([heading, , kind], at) => Ouro.h(kind ? `th.${kind}` : "th", {scope: "col"},
    heading && Ouro.h("button.sort", {type: "button", onclick: () => Ouro.sort(heads, body, at)}, heading)));
  const made = Ouro.h("div.scroll", {tabindex: 0}, Ouro.h("table", given, Ouro.h("thead", null, Ouro.h("tr", null, heads)), body));
  const texts = () => [heads, ...[...body.rows].filter((row) => !row.hidden).map((row) => [...row.cells])].map(
    (cells) => cells.map((cell) => cell.textContent));
  return csv ? Ouro.h("div", null, made, Ouro.h("button.small", {type: "button", onclick: () => Ouro.csv(csv, texts())}, "CSV")) : made;
};

// a field that hides the rows of the tables in a place that lack one of its words; call its `keep` after a table is drawn
Ouro.sieve = (place, label) => {
  const field = Ouro.h("input", {type: "search", placeholder: label, "aria-label": label, oninput: () => field.keep()});
  field.keep = () => place.querySelectorAll("tbody tr").forEach((row) => {
    row.hidden = !field.value.toLowerCase().split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word));
  });
  return field;
};

// sorts by a column: numbers first, then texts; the same heading again turns it around
Ouro.sort = (heads, body, at) => {
  const down = heads[at].getAttribute("aria-sort") === "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
  const number = /^[-+]?[\d,.]+(e[-+]?\d+)?(?=%?( \[.*)?$)/i;  // a percentage and an interval too
  const key = (row) => { const text = row.cells[at].textContent, found = number.exec(text); return found ? Number(found[0].replaceAll(",", "")) : text; };
  const before = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  body.append(...[...body.rows].sort((a, b) => before(key(a), key(b)) * (down ? -1 : 1)));
};

// a spreadsheet takes a text that begins with one of =+-@ for a formula, unless it is a number
Ouro.csv = (name, rows) => {
  const cell = (value) => { const text = String(value ?? ""); return `"${/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? "'" : ""}${text.replaceAll('"', '""')}"`; };
  const address = URL.createObjectURL(new Blob([rows.map((row) => `${row.map(cell).join(",")}\n`).join("")], {type: "text/csv"}));
  Ouro.save(name, address);
  setTimeout(() => URL.revokeObjectURL(address), 1000);
};

Ouro.save = (name, address) => Ouro.h("a", {href: address, download: name}).click();

Ouro.failed = (error) => Ouro.h("p.failed", {role: "alert"}, error.message);

// where the page is: #/run/a/b/rollouts?stage=rft -> {run: "a/b", part: "rollouts", fields: [["stage", "rft"]]}
Ouro.at = () => {
  const [path, fields] = location.hash.replace(/^#\/?/, "").split("?"), parts = path.split("/").map(decodeURIComponent);
  const run = parts[0] === "run" && parts.length > 2;
  return {run: run ? `${parts[1]}/${parts[2]}` : null, part: (run ? parts[3] : parts[0]) || "", fields: [...new URLSearchParams(fields || "")]};
};

Ouro.all = (at, name) => at.fields.filter(([key]) => key === name).map(([, value]) => value);

Ouro.one = (at, name) => Ouro.all(at, name)[0];

Ouro.address = (run, part, fields) => {
  const asked = Ouro.query(fields || {});
  return `#/run/${run.split("/").map(encodeURIComponent).join("/")}${part ? `/${part}` : ""}${asked ? `?${asked}` : ""}`;
};

// a link to the rollout of an id: STAGE-HASH/STEP/TASK/RUN
Ouro.rollout = (run, id) => Ouro.h("a", {href: Ouro.address(run, "rollouts", {stage: id.split("/")[0].replace(/-[0-9a-f]+$/, ""), experience_id: id})}, id);

// links of which one is here: [[label, address, whether it is]]
Ouro.links = (label, ones) => Ouro.h("p.tabs", {role: "group", "aria-label": label}, ones.map(
  ([name, href, here]) => Ouro.h(here ? "a.here" : "a", {href}, name)));

// a list to choose from: go is given what is chosen
Ouro.choice = (label, names, go) => (names.length ? Ouro.h("label", null, Ouro.h("span", null, label), Ouro.h("select",
  {onchange: (event) => go(event.currentTarget.value)}, Ouro.h("option", {value: ""}, "…"), names.map((name) => Ouro.h("option", {value: name}, name)))) : null);

// fields that a phone shows when they are asked for, or when some of them are filled
Ouro.fold = (label, filled, ...shown) => Ouro.h("details", {open: filled || matchMedia("(min-width: 760px)").matches}, Ouro.h("summary", null, label), ...shown);

Ouro.renewals = new Set();  // of parts of the page, called when a run has changed

// a part of the page: draw makes an element of what ask answers, again when another answer comes; it says why it cannot.
// Without draw the answer is the element, once
Ouro.part = (place, ask, draw) => {
  let shown = Ouro.h("div", {"aria-busy": "true"}, Ouro.h("p.note", null, "reads…")), known, busy = false, begun = false;
  const put = (made) => {
    const link = shown.contains(document.activeElement) && document.activeElement.getAttribute("href");
    shown.replaceWith(made);
    shown = made;
    if (link) [...made.querySelectorAll("a")].find((one) => one.getAttribute("href") === link)?.focus();
  };
  const renew = async () => {
    if (begun && !shown.isConnected) Ouro.renewals.delete(renew);
    if (busy || (begun && !shown.isConnected)) return;
    busy = true;
    try {
      const found = await ask(), text = draw && JSON.stringify(found);
      if (!known || (text !== known && !shown.querySelector("input:focus, select:focus, textarea:focus"))) {
        put(draw ? draw(found) : found);
        known = text;
      }
    } catch (error) {
      if (error.name !== "AbortError" && !known) put(Ouro.failed(error));
    }
    busy = false;
    begun = true;
  };
  place.append(shown);
  if (draw) Ouro.renewals.add(renew);
  renew();
};

const OuroParts = {};  // name of a part -> (place, at) that fills the place
