// Curves of the columns of steps, of one run or of several over each other, and distributions of what rows have.
"use strict";

OuroParts.curves = (place, at) => {
  const {h} = Ouro, AXES = ["step", "tokens", "seconds"], WIDTHS = [["not", 0], ["little", 1], ["more", 3], ["much", 8]], SPREAD = "distributions";
  const runs = [at.run, ...Ouro.all(at, "with")], axis = Ouro.one(at, "axis") || "step", asked = Ouro.all(at, "column");
  const smooth = Number(Ouro.one(at, "smooth") || 0), log = Ouro.one(at, "log") === "1", named = Ouro.one(at, "group");
  const link = (changed) => Ouro.address(at.run, "curves", {with: runs.slice(1), axis, smooth: smooth || "", log: log ? "1" : "", group: named, column: asked, ...changed});
  const go = (changed) => { location.hash = link(changed); };

  // a chart for each stage that has the column: the steps of two stages are not the same
  const of = (title, found, given) => [...Map.groupBy(found, (made) => made.stage)].map(([stage, ones], _, all) => OuroCharts.chart(
    all.length > 1 ? `${title}, ${stage}` : title, ones.map((made) => ({...made, label: runs.length > 1 ? `${made.run} ${made.stage}` : made.stage})), {axis, smooth, log, ...given}));

  const card = (columns) => (name) => {
    const made = h("div.card"), about = columns.find((column) => column.name === name);
    Ouro.part(made, () => Ouro.ask("curves", {run: runs, column: name, axis}), (found) => h("div", null,
      found.length ? of(name, found) : h("p.note", null, `${name}: no value`), h("p.note", null, about ? about.meaning : ""),
      asked.length ? h("a.note", {href: link({column: asked.filter((other) => other !== name)})}, "remove") : null));
    return made;
  };

  const spread = (run) => {
    const made = h("div");
    Ouro.part(made, () => Ouro.ask("distributions", {run}), (found) => (found.length ? h("div.grid", null, found.map((one) => h("div.card", null,
      OuroCharts.chart(`${one.name}, ${one.stage}${runs.length > 1 ? ` of ${run}` : ""}`, [{...one, label: "mean and one standard deviation"}], {axis: "step", shares: one.shares})))) : h("p.note", null, "no rows yet")));
    return made;
  };

  const drawn = (columns) => {
    const groups = [...new Set(columns.map((column) => column.group)), SPREAD], group = asked.length ? null : groups.includes(named) ? named : groups[0];
    const others = OuroView.runs().map((run) => run.run).filter((name) => !runs.includes(name)), differences = h("div");
    const shown = asked.length ? asked : columns.filter((column) => column.group === group).map((column) => column.name);
    if (runs.length > 1) Ouro.part(differences, () => Ouro.ask("differences", {run: runs}), (lines) => h("div", null, lines.map((line) => h("p.note", null, line))));
    return h("div", null, h("h2", null, "curves"), Ouro.links("Groups of curves", groups.map((name) => [name, link({group: name, column: []}), name === group])),
      Ouro.fold("axes and columns", false, h("div.row", null, ...(group === SPREAD ? [] : [Ouro.links("Horizontal axis", AXES.map((name) => [`by ${name}`, link({axis: name}), name === axis])),
        Ouro.links("Smoothing", WIDTHS.map(([name, width]) => [`${name} smoothed`, link({smooth: width || ""}), width === smooth])),
        Ouro.links("Vertical axis", [["linear", link({log: ""}), !log], ["log", link({log: "1"}), log]])]),
        window.OURO_DATA ? null : Ouro.choice("over another run", others, (name) => go({with: [...runs.slice(1), name]})),
        Ouro.choice("add a column", columns.map((column) => column.name).filter((name) => !shown.includes(name)), (name) => go({column: [...shown, name]})),
        runs.length > 1 ? h("a.button", {href: link({with: []})}, "this run alone") : null)),
      h("p.note", null, "Drag over a chart to look closer, click it twice to see all; a click on a name hides its curve."), differences,
      group === SPREAD ? runs.map(spread) : h("div.grid", null, shown.map(card(columns))));
  };
  Ouro.part(place, () => Ouro.ask("columns", {run: runs}), drawn);
};
