// The settings of a run, next to those of others where they differ; the logs of its stages.
"use strict";

OuroParts.settings = (place, at) => {
  const {h} = Ouro, runs = [at.run, ...Ouro.all(at, "with")], others = OuroView.runs().map((run) => run.run).filter((name) => !runs.includes(name));
  const go = (others) => Ouro.address(at.run, "settings", {with: others}), text = (value) => (value === undefined ? "" : JSON.stringify(value));
  const shown = h("div"), words = Ouro.sieve(shown, "settings with these words");
  place.append(h("h2", null, runs.length > 1 ? "settings that differ" : "settings"), h("div.row", null, words,
    Ouro.choice("difference to", others, (name) => { location.hash = go([...runs.slice(1), name]); }), runs.length > 1 ? h("a.button", {href: go([])}, "this run alone") : null), shown);
  Ouro.part(shown, () => Ouro.ask("settings", {run: runs}), (rows) => {
    setTimeout(words.keep);
    return rows.length ? Ouro.table([["key", (row) => row.key], ...runs.map((run, i) => [run, (row) => text(row.values[i])])], rows, {csv: "settings.csv"}) : h("p.note", null, "no setting differs");
  });
};

OuroParts.logs = (place, at) => {
  const {h} = Ouro, LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"], level = Ouro.one(at, "level") || "INFO";
  Ouro.part(place, () => Ouro.ask("logs", {run: at.run, level}), (lines) => h("div", null, h("h2", null, "logs"),
    Ouro.links("Least level", LEVELS.map((name) => [name.toLowerCase(), Ouro.address(at.run, "logs", {level: name}), name === level])),
    h("p.note", null, "the last records of all stages, the latest first"), h("pre.log", {tabindex: 0}, lines.length ? lines.toReversed().join("\n") : "none")));
};
