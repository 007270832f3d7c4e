// Evaluations: every score with its interval, those on the way of a training stage as a curve.
"use strict";

OuroParts.scores = (place, at) => Ouro.part(place, () => Ouro.ask("scores", {run: at.run}), (found) => {
  const {h} = Ouro;
  if (!found.length) return h("p.note", null, "no evaluation yet");
  const text = (row, value) => (row.metric.endsWith("_reward") ? Ouro.number(value) : Ouro.percent(value));
  const curves = [...Map.groupBy(found, (row) => `${row.of}, ${row.taskset}, ${row.metric}`)].filter(([, rows]) => rows.length > 2).map(([name, rows]) => h("div.card", null,
    OuroCharts.chart(name, [{label: "estimate and its 95% interval", x: rows.map((row) => row.step), y: rows.map((row) => row.value), low: rows.map((row) => row.low), high: rows.map((row) => row.high)}], {axis: "step"})));
  return h("div", null, h("h2", null, "evaluations"), h("div.grid", null, curves), Ouro.table([
    ["stage", (row) => h("a", {href: Ouro.address(at.run, "rollouts", {stage: row.of, table: "samples", taskset: row.taskset})}, row.of)], ["model", (row) => row.model], ["step", (row) => row.step, "number"],
    ["set", (row) => row.taskset], ["metric", (row) => row.metric], ["value", (row) => text(row, row.value), "number"], ["95% interval", (row) => `${text(row, row.low)} to ${text(row, row.high)}`, "number"],
    ["tasks", (row) => row.tasks, "number"], ["responses", (row) => row.runs, "number"], ["failed", (row) => row.failed_rows, "number"], ["trained on", (row) => row.trained_tasks || "", "number"]], found, {csv: "evaluations.csv"}));
});
