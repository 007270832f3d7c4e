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

// a table: columns are [heading, row -> cell, class]; a row may have a link
Ouro.table = (columns, rows, given) => Ouro.h("div.scroll", {tabindex: 0}, Ouro.h("table", given,
  Ouro.h("thead", null, Ouro.h("tr", null, columns.map(([heading, , kind]) => Ouro.h(kind ? `th.${kind}` : "th", {scope: "col"}, heading)))),
  Ouro.h("tbody", null, rows.map((row) => Ouro.h("tr", null, columns.map(
    ([, cell, kind]) => Ouro.h(kind ? `td.${kind}` : "td", null, cell(row))))))));

Ouro.failed = (error) => Ouro.h("p.failed", {role: "alert"}, error.message);

// draws a part of the page when its answer is there; says why it is not
Ouro.part = (place, work) => {
  const told = Ouro.h("div", {"aria-busy": "true"}, Ouro.h("p.note", null, "reads…"));
  place.append(told);
  Promise.resolve().then(work).then((made) => told.replaceWith(made), (error) => {
    if (error.name !== "AbortError") told.replaceWith(Ouro.failed(error));
  });
  return told;
};
