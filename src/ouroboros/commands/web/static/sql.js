// Questions in SQL, and charts of their answers.
"use strict";

OuroParts.sql = (() => {
  const {h} = Ouro;
  const QUESTIONS = ["select model, taskset, metric, value, low, high from scores", "select step, reward, entropy, loss from steps order by step",
    "select task_id, count(*) rows, avg(reward) reward from experience group by 1 order by 3 limit 50", "select reason, count(*) rows from experience where status <> 'ok' group by 1 order by 2 desc"];

  function sql(place, at) {
    const question = h("textarea", {rows: 5, spellcheck: "false", "aria-label": "Question in SQL"}, Ouro.one(at, "question") || QUESTIONS[0]), answer = h("div", {"aria-live": "polite"});
    const ask = (event) => {
      event.preventDefault();
      history.replaceState(null, "", Ouro.address(at.run, "sql", {question: question.value}));
      answer.replaceChildren();
      Ouro.part(answer, async () => answered(await Ouro.post("sql", {runs: [at.run], question: question.value}), at.run));
    };
    const form = h("form", {onsubmit: ask}, question, h("div.row", null, h("button", {type: "submit"}, "ask"), h("label", null, h("span", null, "examples"), h("select", {onchange: (event) => { question.value = event.currentTarget.value || question.value; }},
      h("option", {value: ""}, "…"), QUESTIONS.map((text) => h("option", {value: text}, text))))));
    question.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); });
    if (Ouro.one(at, "question")) setTimeout(() => form.requestSubmit());  // once it is part of the page
    place.append(h("h2", null, "SQL"), h("p.note", null, "One question that reads, over the tables of this run: experience, steps, trained, scores, samples, tasks and others. Ctrl-Enter asks."), form, answer);
  }

  function answered(found, run) {
    const numeric = found.columns.map((_, i) => found.rows.length > 0 && found.rows.every((row) => row[i] === null || typeof row[i] === "number"));
    const place = h("div"), axes = found.columns.map((name, i) => [name, i]).filter(([, i]) => numeric[i]);
    const pick = (label, chosen) => h("label", null, h("span", null, label), h("select", {onchange: () => draw()}, axes.map(([name, i]) => h("option", {value: i, selected: i === chosen}, name))));
    const x = pick("x", axes.length ? axes[0][1] : 0), y = pick("y", axes.length > 1 ? axes[1][1] : 0);
    const draw = () => {
      const [i, j] = [x, y].map((label) => Number(label.querySelector("select").value));
      const points = found.rows.filter((row) => row[i] !== null && row[j] !== null).sort((a, b) => a[i] - b[i]);
      place.replaceChildren(OuroCharts.chart(`${found.columns[j]} by ${found.columns[i]}`, [{label: found.columns[j], x: points.map((row) => row[i]), y: points.map((row) => row[j])}], {axis: found.columns[i], points: new Set(points.map((row) => row[i])).size < points.length}));
    };
    if (axes.length > 1) draw();
    return h("div", null, axes.length > 1 ? h("details", null, h("summary", null, "chart"), h("div.row", null, x, y), place) : null,
      Ouro.table(found.columns.map((name, i) => [name, (row) => (row[i] === null ? "NULL" : name === "experience_id" ? Ouro.rollout(run, String(row[i])) : typeof row[i] === "object" ? JSON.stringify(row[i]) : String(row[i])), numeric[i] ? "number" : "text"]), found.rows, {csv: "answer.csv"}),
      h("p.note", null, found.more ? "the first 1,000 rows" : `${found.rows.length} rows`));
  }

  return sql;
})();
