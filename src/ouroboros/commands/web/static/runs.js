// All runs as a table: the settings in which they differ, dates, scores with their intervals; several are laid over
// each other in the curves.
"use strict";

OuroParts.runs = (place) => {
  const {h} = Ouro, chosen = new Set(), shown = h("div"), words = Ouro.sieve(shown, "runs with these words");
  const over = h("button", {type: "button", disabled: true, onclick: () => { const [first, ...others] = chosen; location.hash = Ouro.address(first, "curves", {with: others}); }}, "curves of the chosen ones");
  const part = (value) => (value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value));
  const tick = (run) => h("input", {type: "checkbox", "aria-label": `choose ${run}`, checked: chosen.has(run), onchange: (event) => {
    if (event.currentTarget.checked) chosen.add(run); else chosen.delete(run);
    over.disabled = !chosen.size;
  }});
  const form = (metric, value) => (metric.endsWith("_reward") ? Ouro.number(value) : Ouro.percent(value));
  place.append(h("h2", null, "runs"), h("div.row", null, words, over), shown);
  Ouro.part(shown, () => Ouro.ask("table"), (runs) => {
    const names = (of) => [...new Set(runs.flatMap((run) => Object.keys(run[of])))];
    setTimeout(words.keep);  // once they are part of the page
    return Ouro.table([["", (run) => tick(run.run)], ["run", (run) => h("a", {href: Ouro.address(run.run, "")}, run.run)], ["state", (run) => [h(`span.state.${run.state}`), run.state], "kept"],
      ["launched", (run) => new Date(1000 * run.launched).toLocaleString("sv-SE").slice(0, 16), "kept"], ...names("settings").map((name) => [name, (run) => part(run.settings[name])]),
      ...names("scores").map((name) => [name, ({scores: {[name]: one}}) => (one ? `${form(one.metric, one.value)} [${form(one.metric, one.low)}, ${form(one.metric, one.high)}]` : ""), "number"]),
    ...(runs.some((run) => run.tags.length || run.note) ? [["tags", (run) => run.tags.map((tag) => h("span.tag.plain", null, tag))], ["note", (run) => run.note]] : [])],
    runs, {csv: "runs.csv"});
  });
};
