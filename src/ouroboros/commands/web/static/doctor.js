// What the rules of `ouro doctor` find in a run, the findings first, each with its query; and the question for the rows
// that may have taught a behaviour.
"use strict";

OuroParts.doctor = (() => {
  const {h} = Ouro, RANK = ["found", "healthy", "skipped"];

  function drawn(verdicts, at) {
    const found = verdicts.filter((one) => one.verdict === "found");
    const evidence = (one) => Object.entries(one.evidence || {}).map(([name, value]) => h("div", null, `${name} ${Ouro.number(value)}`));
    return h("div", null, h("h2", null, "doctor"), h("p.note", null, `${found.length} findings; the value of a healthy stage is on the other side of the limit`), Ouro.table([
      ["verdict", (one) => h(one.verdict === "found" ? "span.failed" : "span", null, one.verdict)], ["rule", (one) => (window.OURO_DATA ? one.rule : h("a", {href: Ouro.address(at.run, "sql", {question: one.sql})}, one.rule))],
      ["finds", (one) => one.finds], ["stage", (one) => one.stage], ["evidence", evidence], ["limit", (one) => Ouro.number(one.limit), "number"], ["to change", (one) => one.change]],
    verdicts.toSorted((a, b) => RANK.indexOf(a.verdict) - RANK.indexOf(b.verdict)), {csv: "doctor.csv"}));
  }

  function onset(run) {
    const told = h("div", {"aria-live": "polite"});
    const ask = async (event) => {
      event.preventDefault();
      const predicate = event.currentTarget.elements.predicate.value;
      try { location.hash = Ouro.address(run, "sql", {question: await Ouro.ask("onset", {predicate})}); } catch (error) { told.replaceChildren(Ouro.failed(error)); }
    };
    return h("form", {onsubmit: ask}, h("h3", null, "rows that taught a behaviour"), h("p.note", null, "A condition in SQL on the columns of experience, true of a reply that shows it. Ranked are such replies with a positive advantage, up to the onset."),
      h("div.row", null, h("label.wide", null, h("span", null, "condition"), h("input", {name: "predicate", required: true, spellcheck: "false", autocomplete: "off", placeholder: "response LIKE '%sorry%'"})), h("button", {type: "submit"}, "rank")), told);
  }

  return (place, at) => {
    Ouro.part(place, () => Ouro.ask("doctor", {run: at.run}), (verdicts) => drawn(verdicts, at));
    if (!window.OURO_DATA) place.append(onset(at.run));
  };
})();
