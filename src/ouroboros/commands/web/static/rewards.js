// What the stored responses of a run would be rewarded under a corrected reward: `ouro reward diff`.
"use strict";

OuroParts.rewards = (() => {
  const {h} = Ouro;

  function drawn(found, run) {
    const tables = ["components", "tasks", "rows"].filter((key) => found[key].length).map((key) => h("section", null, h("h3", null, key), Ouro.table(
      Object.keys(found[key][0]).map((name) => [name.replaceAll("_", " "), (row) => (name === "experience_id" ? Ouro.rollout(run, row[name]) : Ouro.number(row[name])), typeof found[key][0][name] === "number" ? "number" : "text"]), found[key], {csv: `${key}.csv`})));
    const step = found.first_trainer_step === null ? "no trainer step has other advantages" : `the first trainer step with other advantages is ${found.certain ? "" : "at the earliest "}${found.first_trainer_step}`;
    return h("div", null, h("p", null, `stage ${found.stage}: ${found.changed} of ${found.attempts} attempts would be rewarded otherwise, ${found.higher} higher, ${found.lower} lower; ${found.newly_solved} newly solved, ${found.no_longer_solved} no longer; ${found.newly_failed} without a reward`),
      found.changed ? h("p", null, `the first is of explorer step ${found.first_explorer_step}; ${step}`) : null, tables);
  }

  return (place, at) => {
    const answer = h("div", {"aria-live": "polite"}), words = h("input", {value: Ouro.one(at, "words") || "", spellcheck: "false", autocomplete: "off", placeholder: "corrected.yaml, or key=value …"});
    const ask = (event) => {
      event.preventDefault();
      history.replaceState(null, "", Ouro.address(at.run, "rewards", {words: words.value}));
      answer.replaceChildren();
      Ouro.part(answer, async () => drawn(await Ouro.post("rewards", {run: at.run, words: words.value}), at.run));
    };
    place.append(h("h2", null, "rewards"), h("p.note", null, "The stored responses are rewarded again by the functions as they are now, or by those of a recipe or of settings, without a model. Nothing is written."),
      h("form", {onsubmit: ask}, h("div.row", null, h("label.wide", null, h("span", null, "recipe or settings"), words), h("button", {type: "submit"}, "reward again"))), answer);
  };
})();
