// What the rules of `ouro doctor` find in a run: the findings first, each with its query.
"use strict";

OuroParts.doctor = (place, at) => Ouro.part(place, () => Ouro.ask("doctor", {run: at.run}), (verdicts) => {
  const {h} = Ouro, RANK = ["found", "healthy", "skipped"], found = verdicts.filter((one) => one.verdict === "found");
  const evidence = (one) => Object.entries(one.evidence || {}).map(([name, value]) => h("div", null, `${name} ${Ouro.number(value)}`));
  return h("div", null, h("h2", null, "doctor"), h("p.note", null, `${found.length} findings; the value of a healthy stage is on the other side of the limit`), Ouro.table([
    ["verdict", (one) => h(one.verdict === "found" ? "span.failed" : "span", null, one.verdict)], ["rule", (one) => (window.OURO_DATA ? one.rule : h("a", {href: Ouro.address(at.run, "sql", {question: one.sql})}, one.rule))],
    ["finds", (one) => one.finds], ["stage", (one) => one.stage], ["evidence", evidence], ["limit", (one) => Ouro.number(one.limit), "number"], ["to change", (one) => one.change]],
  verdicts.toSorted((a, b) => RANK.indexOf(a.verdict) - RANK.indexOf(b.verdict)), {csv: "doctor.csv"}));
});
