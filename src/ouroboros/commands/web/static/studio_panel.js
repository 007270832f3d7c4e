// Beside the form: what `ouro config check` says of the recipe, its numbers and stages; a prompt; a sweep; the start.
"use strict";

const StudioPanel = (() => {
  const {h} = Ouro;

  function found(told, show) {
    const list = (title, kind, ones) => (ones.length ? [h("h2", null, title), h("ul", null, ones.map((one) => h("li", null,
      h(`span.${kind}`, null, one.text), " ", one.key && /^[a-z][\w.]*$/.test(one.key) ? h("a", {href: "#", onclick: (event) => { event.preventDefault(); show(one); }}, "show") : null)))] : []);
    const said = told.problems.length ? `${told.problems.length} problem${told.problems.length > 1 ? "s" : ""}` : "no problem found";
    return [h("p", {role: "status"}, h(`span.tag.${told.problems.length ? "bad" : "good"}`, null, said)),
      ...list("problems", "failed", told.problems), ...list("warnings", "warning", told.warnings)];
  }

  const numbers = (told) => told.facts.filter((one) => one.facts.length).map((one) => h("details", {open: one.facts.length < 9}, h("summary", null, one.heading),
    h("dl", null, one.facts.map(([word, what]) => [h("dt", null, word), h("dd", null, what)]))));

  const stages = (told) => (told.stages.length ? [h("h2", null, "stages"), h("p.note", null, told.stages.map((one) => h("span", null, one.name, one.complete ? " (made) " : " ")))] : []);

  // how long it takes, by the steps of the last run that had stages of these names
  const times = (told, paces) => (Object.keys(told.steps || {}).length ? [h("h2", null, "time"), h("dl", null, Object.entries(told.steps).map(([stage, steps]) => {
    const pace = paces[stage], each = pace ? `${Ouro.number(pace.step_seconds)} s a step in ${pace.run}` : "no run here had such steps: the page of runs says after some what is left";
    return [h("dt", null, stage), h("dd", null, steps === null ? each : pace ? `${Ouro.number(steps)} steps, ${Ouro.duration(steps * pace.step_seconds)} with ${each}` : `${Ouro.number(steps)} steps; ${each}`)];
  }))] : []);

  const unjudged = (told) => (told.unjudged.length ? h("details", null, h("summary", null, "not judged here"), h("ul", null, told.unjudged.map((one) => h("li.note", null, one.text)))) : null);

  // the words of a sweep: a setting and its values
  function sweep(keys, changed) {
    const rows = h("div"), told = h("p.note", {"aria-live": "polite"});
    const words = () => [...rows.children].map((row) => [...row.querySelectorAll("input")].map((one) => one.value.trim())).filter(([key, values]) => key && values).map(([key, values]) => `${key}=${values}`);
    const say = () => {
      const points = words().map((word) => word.split(",").length).reduce((a, b) => a * b, 1);
      told.textContent = words().length ? `${points} runs: ouro run -m recipe=… ${words().join(" ")}` : "";
      changed(words(), points);
    };
    const add = () => {
      const row = h("div.row", null, h("input", {"aria-label": "Setting to vary", list: "sweep-keys", placeholder: "algorithm.optimizer.lr", oninput: say}),
        h("input", {"aria-label": "Its values, with commas", placeholder: "1e-6,3e-6", oninput: say}), h("button", {type: "button", onclick: () => { row.remove(); say(); }, "aria-label": "remove"}, "×"));
      rows.append(row);
      row.querySelector("input").focus();
    };
    return h("details", null, h("summary", null, "sweep: a run of each value"), h("datalist", {id: "sweep-keys"}, keys.map((key) => h("option", {value: key}))), rows,
      h("button", {type: "button", onclick: add}, "add a setting"), told);
  }

  return {found, numbers, stages, times, unjudged, sweep};
})();
