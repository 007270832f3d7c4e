// The page of `ouro view`: which part is shown is in the address (#/run/PROJECT/NAME/PART?fields), so that every view
// has a link.
"use strict";

const OuroView = (() => {
  const {h} = Ouro, main = document.getElementById("main");
  const PARTS = [["", "stages"], ["curves", "curves"], ["scores", "evaluations"], ["rollouts", "rollouts"], ["sql", "SQL"]];
  const AXES = [["step", "step"], ["tokens", "tokens"], ["seconds", "seconds"]];
  const LIVE_SECONDS = 3;
  let timer = null, known = [];

  // #/run/a/b/rollouts?stage=rft -> {run: "a/b", part: "rollouts", fields: {stage: "rft"}}
  function read() {
    const [path, fields] = location.hash.replace(/^#\/?/, "").split("?");
    const parts = path.split("/").map(decodeURIComponent);
    return {run: parts[0] === "run" && parts.length > 2 ? `${parts[1]}/${parts[2]}` : null, part: parts[3] || "", fields: [...new URLSearchParams(fields || "")]};
  }

  const one = (at, name) => (at.fields.find(([key]) => key === name) || [])[1];
  const address = (run, part, fields) => {
    const asked = Ouro.query(fields || {});
    return `#/run/${run.split("/").map(encodeURIComponent).join("/")}${part ? `/${part}` : ""}${asked ? `?${asked}` : ""}`;
  };

  async function show() {
    const at = read(), asked = location.hash;
    clearTimeout(timer);
    OuroRollouts.stop();
    try {
      known = await Ouro.ask("runs");
    } catch (error) {
      main.replaceChildren(Ouro.failed(error));
      return;
    }
    if (location.hash !== asked) return;  // another address was asked for meanwhile
    if (!at.run && known.length) { location.replace(address(known[0].run, "")); return; }
    side(at);
    tabs(at);
    document.title = at.run ? `${at.run}, Ouroboros` : "Ouroboros";
    main.replaceChildren();
    if (!at.run) {
      main.append(h("p", {role: "status"}, "No run here yet. Start one with `ouro run`; it appears here."));
      timer = setTimeout(show, 1000 * LIVE_SECONDS);
      return;
    }
    Ouro.part(main, () => ({"": stages, curves, scores, rollouts, sql}[at.part] || stages)(at));
    if (!window.OURO_DATA) machine();
  }

  function side(at) {
    document.getElementById("runs").replaceChildren(h("h2", null, "runs"), h("ul", null, known.map((run) => h("li", null, h(run.run === at.run ? "a.here" : "a", {
      href: address(run.run, at.part), "aria-current": run.run === at.run ? "page" : null},
    h(`span.state.${run.state}`, {title: run.state}), h("span", null, run.run), h("span.note", null, ` ${run.complete} of ${run.stages}`))))));
  }

  const tabs = (at) => document.getElementById("tabs").replaceChildren(...PARTS.filter(([part]) => !(window.OURO_DATA && part === "sql")).map(
    ([part, label]) => h(part === at.part ? "a.here" : "a", {href: at.run ? address(at.run, part) : "#/", "aria-current": part === at.part ? "page" : null}, label)));

  async function machine() {
    const found = await Ouro.ask("machine").catch(() => null);
    if (!found) return;
    document.getElementById("machine").textContent = [`CPU ${Math.round(100 * found.cpu_used)}%`, `memory ${found.memory_used_gib.toFixed(1)} of ${found.memory_gib.toFixed(0)} GiB`,
      ...found.gpus.map((gpu, i) => `GPU ${i} ${Math.round(100 * gpu.used)}%, ${gpu.memory_used_gib.toFixed(0)} of ${gpu.memory_gib.toFixed(0)} GiB`)].join(" · ");
  }

  // ------------------------------------------------------------------------------------------------ stages

  async function stages(at) {
    const found = await Ouro.ask("run", {run: at.run}), place = h("div");
    const draw = (run) => {
      const rows = run.stages.map((stage) => h("tr", null,
        h("th", {scope: "row"}, stage.tables.length ? h("a", {href: address(at.run, "rollouts", {stage: stage.name})}, stage.name) : stage.name),
        h("td.kept", null, h(`span.state.${stage.state}`), stage.state, stage.reached ? `, ${stage.reached}` : ""),
        h("td.number", null, Ouro.duration(stage.seconds)),
        h("td", null, [stage.latest, ...stage.doing, stage.left_seconds === undefined ? null : `${Ouro.number(1 / stage.step_seconds)} steps/s, ${Ouro.duration(stage.left_seconds)} left`,
          stage.warning, stage.note].filter(Boolean).map((line) => h("div", null, line)), stage.problem ? h("div.failed", null, stage.problem) : null)));
      place.replaceChildren(h("h2", null, run.run), OuroCharts.stages(run.stages, null, (name) => {
        const stage = run.stages.find((other) => other.name === name);
        return stage.tables.length ? address(at.run, "rollouts", {stage: name}) : address(at.run, "curves");
      }), h("div.scroll", {tabindex: 0}, h("table", null, h("thead", null, h("tr", null, ["stage", "state", "time", ""].map((name) => h("th", {scope: "col"}, name)))), h("tbody", null, rows))),
      window.OURO_DATA ? "" : h("p.note", null, "stored in ", run.stages.length ? run.stages[0].directory.replace(/\/[^/]*$/, "") : ""));
    };
    const again = async () => {
      if (read().run !== at.run || read().part !== "") return;
      const now = await Ouro.ask("run", {run: at.run}).catch(() => null);
      if (now) draw(now);
      machine();
      timer = setTimeout(again, 1000 * LIVE_SECONDS);
    };
    draw(found);
    if (!window.OURO_DATA) timer = setTimeout(again, 1000 * LIVE_SECONDS);
    return place;
  }

  // ------------------------------------------------------------------------------------------------ curves

  async function curves(at) {
    const runs = [at.run, ...at.fields.filter(([key]) => key === "with").map(([, value]) => value)], axis = one(at, "axis") || "step";
    const columns = await Ouro.ask("columns", {run: runs}), names = columns.map((column) => column.name);
    const asked = at.fields.filter(([key]) => key === "column").map(([, value]) => value);
    const usual = ["reward", "solve_rate", "loss", "entropy", "grad_norm", "response_tokens_mean", "mismatch_mean", "seconds"].filter((name) => names.includes(name));
    const chosen = asked.length ? asked : usual.slice(0, 6);
    const link = (changed) => address(at.run, "curves", {with: runs.slice(1), axis, column: asked, ...changed});
    const others = known.map((run) => run.run).filter((name) => !runs.includes(name));
    const add = (options, label, go) => (options.length ? h("label", null, h("span", null, label), h("select", {onchange: (event) => { location.hash = go(event.currentTarget.value); }},
      h("option", {value: ""}, "…"), options.map((name) => h("option", {value: name}, name)))) : null);
    const charts = chosen.map((name) => {
      const place = h("div.card");
      Ouro.part(place, async () => {
        const found = await Ouro.ask("curves", {run: runs, column: name, axis});
        if (!found.length) return h("p.note", null, `${name}: no value`);
        const about = columns.find((column) => column.name === name);
        const several = runs.length > 1;
        return h("div", null, OuroCharts.chart(name, found.map((made) => ({label: several ? `${made.run} ${made.stage}` : made.stage, x: made.x, y: made.y})), {axis}),
          h("p.note", null, about ? about.meaning : ""), h("a.note", {href: link({column: chosen.filter((other) => other !== name)})}, "remove"));
      });
      return place;
    });
    const differences = h("div");
    if (runs.length > 1) Ouro.part(differences, async () => h("div", null, (await Ouro.ask("differences", {run: runs})).map((line) => h("p.note", null, line))));
    return h("div", null, h("h2", null, "curves"),
      h("div.row", null, h("p.tabs", {role: "group", "aria-label": "Horizontal axis"}, AXES.map(([name, label]) => h(name === axis ? "a.here" : "a", {href: link({axis: name})}, `by ${label}`))),
        window.OURO_DATA ? null : add(others, "over another run", (name) => link({with: [...runs.slice(1), name]})), add(names.filter((name) => !chosen.includes(name)), "add a column", (name) => link({column: [...chosen, name]})),
        runs.length > 1 ? h("a.button", {href: link({with: []})}, "this run alone") : null),
      differences, h("div.grid", null, charts));
  }

  // ------------------------------------------------------------------------------------------------ evaluations

  async function scores(at) {
    const found = await Ouro.ask("scores", {run: at.run});
    if (!found.length) return h("p.note", null, "no evaluation yet");
    const share = (row) => !row.metric.endsWith("_reward"), text = (row, value) => (share(row) ? Ouro.percent(value) : Ouro.number(value));
    const groups = Map.groupBy ? Map.groupBy(found, (row) => `${row.of}, ${row.taskset}, ${row.metric}`) : found.reduce((made, row) => made.set(`${row.of}, ${row.taskset}, ${row.metric}`, [...(made.get(`${row.of}, ${row.taskset}, ${row.metric}`) || []), row]), new Map());
    const curve = [...groups].filter(([, rows]) => rows.length > 2).map(([name, rows]) => h("div.card", null, OuroCharts.chart(name,
      [{label: "estimate and its 95% interval", x: rows.map((row) => row.step), y: rows.map((row) => row.value), low: rows.map((row) => row.low), high: rows.map((row) => row.high)}], {axis: "step"})));
    return h("div", null, h("h2", null, "evaluations"), h("div.grid", null, curve), Ouro.table([
      ["stage", (row) => h("a", {href: address(at.run, "rollouts", {stage: row.of, table: "samples", taskset: row.taskset})}, row.of)], ["model", (row) => row.model], ["step", (row) => row.step, "number"],
      ["set", (row) => row.taskset], ["metric", (row) => row.metric], ["value", (row) => text(row, row.value), "number"], ["95% interval", (row) => `${text(row, row.low)} to ${text(row, row.high)}`, "number"],
      ["tasks", (row) => row.tasks, "number"], ["responses", (row) => row.runs, "number"], ["failed", (row) => row.failed_rows, "number"], ["trained on", (row) => row.trained_tasks || "", "number"]], found));
  }

  // ------------------------------------------------------------------------------------------------ rollouts

  async function rollouts(at) {
    const run = await Ouro.ask("run", {run: at.run}), having = run.stages.filter((stage) => stage.tables.length);
    if (!having.length) return h("p.note", null, "no rollouts yet");
    const named = having.find((other) => other.name === one(at, "stage"));
    const stage = named || having.findLast((other) => other.tables.includes("experience")) || having.at(-1);
    const own = ["stage", "table", "start", "latest", "text", "row", "colour"];
    const where = {run: at.run, stage: stage.name, table: one(at, "table") || stage.tables[0], filters: Object.fromEntries(at.fields.filter(([key]) => !own.includes(key))),
      ...Object.fromEntries(own.slice(2).map((name) => [name, one(at, name)]))};
    const go = (changed) => {
      const {filters, run: _, ...rest} = {...where, ...changed};
      return address(at.run, "rollouts", {...rest, ...filters, ...(rest.colour === "" ? {colour: "none"} : {})});
    };
    if (where.colour === "none") where.colour = "";
    return h("div", null, h("p.tabs", null, having.map((other) => h(other === stage ? "a.here" : "a", {href: address(at.run, "rollouts", {stage: other.name})}, other.name))),
      where.row ? OuroRollouts.row(where, go) : OuroRollouts.list(where, stage, go));
  }

  // ------------------------------------------------------------------------------------------------ SQL

  const QUESTIONS = ["select model, taskset, metric, value, low, high from scores", "select step, reward, entropy, loss from steps order by step",
    "select task_id, count(*) rows, avg(reward) reward from experience group by 1 order by 3 limit 50", "select reason, count(*) rows from experience where status <> 'ok' group by 1 order by 2 desc"];

  async function sql(at) {
    const question = h("textarea", {rows: 5, spellcheck: "false", "aria-label": "Question in SQL"}, one(at, "question") || QUESTIONS[0]), answer = h("div", {"aria-live": "polite"});
    const ask = (event) => {
      event.preventDefault();
      history.replaceState(null, "", address(at.run, "sql", {question: question.value}));
      answer.replaceChildren();
      Ouro.part(answer, async () => answered(await Ouro.post("sql", {runs: [at.run], question: question.value})));
    };
    const form = h("form", {onsubmit: ask}, question, h("div.row", null, h("button", {type: "submit"}, "ask"), h("label", null, h("span", null, "examples"), h("select", {onchange: (event) => { question.value = event.currentTarget.value || question.value; }},
      h("option", {value: ""}, "…"), QUESTIONS.map((text) => h("option", {value: text}, text))))));
    question.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); });
    if (one(at, "question")) setTimeout(() => form.requestSubmit());  // once it is part of the page
    return h("div", null, h("h2", null, "SQL"), h("p.note", null, "One question that reads, over the tables of this run: experience, steps, trained, scores, samples, tasks and others. Ctrl-Enter asks."), form, answer);
  }

  function answered(found) {
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
      Ouro.table(found.columns.map((name, i) => [name, (row) => (row[i] === null ? "NULL" : typeof row[i] === "object" ? JSON.stringify(row[i]) : String(row[i])), numeric[i] ? "number" : "text"]), found.rows),
      h("p.note", null, found.more ? "the first 1,000 rows" : `${found.rows.length} rows`));
  }

  window.addEventListener("hashchange", show);
  show();
  return {read};
})();
