// Rollouts: pages of rows, a search in the texts, and a row with its tokens, its group and its attempt.
"use strict";

const OuroRollouts = (() => {
  const {h} = Ouro;
  // [name of the field, label, values to choose from]
  const FIELDS = {
    experience: [["steps", "steps"], ["train_step", "trained in step"], ["group_id", "group"], ["run_index", "number"], ["role", "role"], ["taskset", "set"], ["task_id", "task"],
      ["status", "status", ["ok", "no_variance", "baseline", "late", "prompt_too_long", "reward_failed", "workflow_failed", "no_feedback", "not_played"]],
      ["accuracy", "accuracy"], ["least_reward", "reward from"], ["most_reward", "reward to"], ["finish_reason", "end", ["stop", "length"]], ["experience_id", "id"]],
    samples: [["steps", "steps"], ["model", "model"], ["taskset", "set"], ["task_id", "task"], ["decoding", "decoding", ["greedy", "sampled"]], ["run_index", "number"],
      ["status", "status", ["ok", "prompt_too_long", "reward_failed", "workflow_failed"]], ["accuracy", "accuracy"], ["least_reward", "reward from"], ["most_reward", "reward to"]],
  };
  const COLOURS = [["read", "to read"], ["logprob", "log-prob"], ["advantage", "advantage"], ["entropy", "entropy"], ["mismatch", "rollout less training"], ["mask", "who wrote it"], ["none", "as it is"]];
  let searching = null;

  const verdict = (row) => {
    if (row.status !== "ok") return h("span.tag.plain", {title: row.reason}, row.status);
    if (row.accuracy === null) return "";
    return h(`span.tag.${row.accuracy >= 1 ? "good" : "bad"}`, null, row.accuracy >= 1 ? "solved" : Ouro.number(row.accuracy));
  };

  // where: {run, stage, table, filters, start, latest}; go: (changed) -> address of the page with other fields
  function list(where, stage, go) {
    const form = fields(where, stage, go), shown = h("div");
    const place = h("section", null, form, shown);
    if (where.text) search(where, shown, go);
    else Ouro.part(shown, () => Ouro.ask("rows", asked(where, {start: where.start, latest: where.latest === "0" ? "" : "1"})), (found) => rows(where, found, go));
    return place;
  }

  const asked = (where, more) => ({run: where.run, stage: where.stage, table: where.table, ...where.filters, ...more});

  function fields(where, stage, go) {
    const inputs = FIELDS[where.table].map(([name, label, choices]) => h("label", null, h("span", null, label), choices
      ? h("select", {name}, h("option", {value: ""}, "all"), choices.map((one) => h("option", {value: one, selected: where.filters[name] === one}, one)))
      : h("input", {name, value: where.filters[name] || "", size: /id|task|model/.test(name) ? 16 : 7, autocomplete: "off", placeholder: name === "steps" ? "12 or 3-40" : ""})));
    const text = h("input", {name: "text", type: "search", value: where.text || "", placeholder: "text in prompts and responses", autocomplete: "off"});
    const latest = h("input", {type: "checkbox", name: "latest", checked: where.latest !== "0"});
    const submit = (event) => {
      event.preventDefault();
      const given = new FormData(event.currentTarget), filters = {};
      for (const [name] of FIELDS[where.table]) if (given.get(name)) filters[name] = given.get(name).trim();
      location.hash = go({filters, text: given.get("text"), latest: given.get("latest") ? "" : "0", start: ""});
    };
    const tables = stage.tables.length > 1 ? h("p.tabs", null, stage.tables.map((one) => h(one === where.table ? "a.here" : "a", {href: go({table: one, filters: {}, start: "", text: ""})}, one === "samples" ? "evaluations" : "rollouts"))) : null;
    return h("form.filters", {onsubmit: submit, "aria-label": "Choose rows"}, tables, where.other ? h("p", {role: "status"}, "Choose the rollout to compare with.") : null,
      h("div.row", null, window.OURO_DATA ? null : h("label.wide", null, h("span", null, "search"), text)),
      Ouro.fold("filters", Object.keys(where.filters).length > 0, h("div.row", null, inputs, h("label", null, h("span", null, "latest first"), latest))),
      h("div.row", null, h("button", {type: "submit"}, "show"), h("a.button", {href: go({filters: {}, text: "", start: "", latest: ""})}, "all rows")));
  }

  const columns = (where, go) => [
    ["step", (row) => row.step, "number"],
    [where.table === "samples" ? "task" : "group", (row) => h("a", {href: go({row: row.row})}, where.table === "samples" ? row.task_id : row.group_id)],
    ["number", (row) => row.turn ? `${row.run_index}, turn ${row.turn}` : row.run_index, "number"],
    ["role", (row) => row.role || ""],
    ["set", (row) => row.taskset],
    ["reward", (row) => Ouro.number(row.reward), "number"],
    ["", verdict],
    ["prompt", (row) => h("span.text", null, OuroText.asked(row.prompt))],
    ["response", (row) => h("a.text", {href: go({row: row.row})}, end(row.response, row.letters) || "(empty)")],
  ];

  const end = (text, letters) => (letters > text.length ? `${text}…` : text);

  function rows(where, found, go) {
    const next = found.next && h("a.button", {href: go({start: found.next, row: ""}), rel: "next"}, found.rows.length ? "next rows" : "go on looking");
    const first = where.start ? h("a.button", {href: go({start: "", row: ""})}, "first rows") : null;
    return h("div", null, found.rows.length ? Ouro.table(columns(where, go), found.rows, {csv: "rollouts.csv"}) : h("p.note", null, found.next ? `no such row up to step ${found.next.split(":")[0]}` : "no such row"),
      h("div.row", null, first, next));
  }

  // a line of JSON for each hit, and one for how far it is
  function search(where, shown, go) {
    stop();
    searching = new AbortController();
    const {signal} = searching, found = [], told = h("p.note", {role: "status"}, "searches…"), place = h("div");
    const end = h("button", {type: "button", onclick: () => { stop(); told.textContent += "; stopped"; end.remove(); }}, "stop");
    shown.append(h("div.row", null, told, end), place);
    const draw = () => place.replaceChildren(found.length ? Ouro.table(columns(where, go), found, {csv: "found.csv"}) : "");
    (async () => {
      const answer = await Ouro.fetch(`api/search?${Ouro.query(asked(where, {text: where.text}))}`, {signal});
      if (!answer.ok) await Ouro.read(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = "", more = await reader.read(); !more.done; more = await reader.read()) {
        const lines = (rest + more.value).split("\n");
        rest = lines.pop();
        const known = found.length;
        for (const one of lines.map((line) => JSON.parse(line))) {
          if (one.error) throw new Error(one.error);
          if (one.row) found.push(one.row);
          if (one.of !== undefined) told.textContent = `${found.length} rows in ${one.steps} of ${one.of} steps`;
          if (one.full) told.textContent += "; there may be more: choose fewer steps";
        }
        if (found.length > known) draw();
      }
      end.remove();
      if (!found.length) told.textContent += ": no such text";
    })().catch((error) => { if (error.name !== "AbortError") place.replaceChildren(Ouro.failed(error)); end.remove(); });
  }

  const stop = () => { if (searching) searching.abort(); searching = null; };

  // -------------------------------------------------------------------------------------------------- a row

  // other: STAGE,TABLE,ROW of the one that it is next to
  function row(where, go) {
    const place = h("section"), other = where.other && where.other.split(","), into = other ? h("div.pair") : place;
    if (other) place.append(h("p", null, h("a", {href: go({other: ""})}, "the second alone")), into);
    for (const [stage, table, row] of [other, [where.stage, where.table, where.row]].filter(Boolean)) {
      Ouro.part(into, () => Ouro.ask("row", {run: where.run, stage, table, row}), (found) => drawn({...where, stage, table, row}, found, go));
    }
    return place;
  }

  function drawn(where, found, go) {
    const one = found.row, tokens = found.tokens && found.pieces, of = {run: where.run, stage: where.stage, table: where.table, task_id: one.task_id};
    const steps = (found.trained || []).map((step) => h("a", {href: go({row: "", filters: {train_step: String(step.train_step)}, start: "", text: ""})}, `step ${step.train_step}`));
    const same = {row: "", filters: {task_id: one.task_id}, start: "", text: ""};
    const facts = [["reward", Ouro.number(one.reward)], ...Object.entries(one.reward_components || {}).map(([name, value]) => [name, Ouro.number(value)]),
      ["status", one.reason ? `${one.status}: ${one.reason}` : one.status], ["task", h("a", {href: go(same)}, one.task_id)],
      found.trained ? ["trained in", steps.length ? steps.flatMap((step) => [step, " "]) : "no step"] : null,
      ...(found.trained || []).slice(-1).map((step) => ["advantage", Ouro.number(step.advantage)]),
      found.curated ? ["curated", found.curated.operator ? `dropped by ${found.curated.operator}: ${found.curated.reason}` : `kept, reward ${Ouro.number(found.curated.reward)}`] : null,
      one.finish_reason ? ["end", one.finish_reason] : null, one.weights_version === undefined ? null : ["weights", `version ${one.weights_version}`], ["step", one.step], ["seed", one.seed]].filter(Boolean);
    const history = h("div");
    if (!window.OURO_DATA) Ouro.part(history, () => Ouro.ask("task", of), (of) => (of.x.length < 2 ? h("div") : h("details", {open: true}, h("summary", null, "the task over steps"), OuroCharts.chart(
      `task ${one.task_id}`, [{label: "mean reward", x: of.x, y: of.reward}, ...(of.solved.some((value) => value !== null) ? [{label: "solved, share", x: of.x, y: of.solved}] : [])], {axis: "step"}))));
    return h("article", null,
      h("p", null, h("a", {href: go({row: "", other: ""})}, "all rows"), "  ", h("span.note", null, one.experience_id || `${one.model}, ${one.task_id}`),
        window.OURO_DATA || where.other ? null : ["  ", h("a", {href: go({...same, other: [where.stage, where.table, found.address].join(",")})}, "compare with another of the task")]),
      h("dl.facts", null, facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
      found.task ? h("details", {open: true}, h("summary", null, "task"), OuroText.markdown(found.task.question), h("p.label", null, "truth"), h("pre", null, found.task.answer)) : null,
      found.image_count ? h("details", {open: true}, h("summary", null, `images of the prompt (${found.image_count})`), h("div.images", null, found.images.map(image)),
        found.images.length < found.image_count ? h("p.note", null, `${found.images.length} of ${found.image_count} are shown`) : null) : null,
      said(found, tokens, where, go), history,
      one.notes ? h("details", null, h("summary", null, "notes of the reward"), h("pre", null, one.notes)) : null,
      Object.entries(found.attempt || {}).map(([name, calls]) => h("details", {open: name === "tool_calls"}, h("summary", null, `${name.replace("_", " ")} (${calls.length})`), calls.map(call))),
      h("h3", null, where.table === "samples" ? "responses to the same task" : "group"), group(where, found, go),
      h("details", null, h("summary", null, "all columns"), h("pre", null, JSON.stringify(one, null, 1))));
  }

  const image = (one) => h("figure", null, h("img", {src: one.src, alt: `image ${one.number} of the prompt`, title: one.hash}), h("figcaption", null, `${one.number}: ${one.width} × ${one.height}`));

  // the conversation, or as it is: the prompt, and the response with its tokens coloured
  function said(found, tokens, where, go) {
    const by = where.colour || "read", raw = by !== "read", has = (name) => tokens && found.tokens.some((one) => one[name] !== undefined && one[name] !== null);
    const choose = h("p.tabs", {role: "group", "aria-label": "Conversation, or tokens coloured by"}, COLOURS.filter(([name]) => ["read", "none"].includes(name) || has(name)).map(
      ([name, label]) => h(name === by ? "a.here" : "a", {href: go({colour: name}), "data-raw": name === (raw ? "read" : has("logprob") ? "logprob" : "none")}, label)));
    return h("div", null, h("h3", null, "conversation"), choose, raw
      ? [h("p.label", null, "prompt"), h("pre", null, found.row.prompt), h("p.label", null, "response"), tokens ? coloured(found.tokens, found.pieces, by) : h("pre", null, found.row.response)]
      : OuroText.conversation(found.row.prompt, found.row.response));
  }

  const call = (one) => h("div.call", null, one.name ? h("p", null, h("b", null, one.name), ` ${one.arguments}`, one.failed ? h("span.tag.bad", null, "failed") : null) : null,
    one.result === undefined ? h("pre", null, JSON.stringify(one)) : h("pre", null, one.result));

  function group(where, found, go) {
    const has = (row) => !window.OURO_DATA || Ouro.has("row", {run: where.run, stage: where.stage, table: where.table, row: row.row});
    const known = [["number", (row) => row.row === found.address ? h("b", null, row.run_index) : has(row) ? h("a", {href: go({row: row.row})}, row.run_index) : row.run_index, "number"],
      ["turn", (row) => row.turn, "number"], ["reward", (row) => Ouro.number(row.reward), "number"], ["", verdict],
      ["response", (row) => h(has(row) ? "a.text" : "span.text", has(row) ? {href: go({row: row.row})} : null, end(row.response, row.letters) || "(empty)")]];
    return Ouro.table(where.table === "samples" ? known.filter(([name]) => name !== "turn") : known, found.group);
  }

  function coloured(tokens, pieces, by) {
    const place = h("pre.tokens"), told = h("p.note.values", null, "\u00a0");
    const scale = tokens.reduce((most, one) => Math.max(most, Math.abs(one[by] || 0)), 1e-9);
    tokens.forEach((one, at) => place.append(h("span", {title: about(one), style: colour(one, by, scale), onpointerenter: () => { told.textContent = about(one); }}, pieces[at] || "\u200b")));
    return h("div", null, place, h("p.note", null, legend(by, scale)), told);
  }

  const key = (one, by, scale, words) => [h("span.key", {style: colour(one, by, scale)}, words), " "];

  function legend(by, scale) {
    if (by === "mask") return [key({mask: 1}, by, 1, "the policy"), key({mask: 0}, by, 1, "a tool, the template or the environment")];
    if (by === "logprob") return [0, -1, -3, -6].map((value) => key({logprob: value}, by, 1, value === -6 ? "-6 and less" : value));
    return by === "none" ? null : [-scale, -scale / 2, 0, scale / 2, scale].map((value) => key({[by]: value}, by, scale, Ouro.number(value)));
  }

  const about = (one) => [`token ${one.id}`, ["logprob", "log-prob"], ["train_logprob", "in training"], ["mismatch", "rollout less training"], ["entropy", "entropy"], ["advantage", "advantage"]].map(
    (name) => (Array.isArray(name) ? (one[name[0]] === undefined || one[name[0]] === null ? null : `${name[1]} ${Ouro.number(one[name[0]])}`) : name)).filter(Boolean).join(", ") + (one.mask ? "" : "; not the policy's own");

  function colour(one, by, scale) {
    if (by === "mask") return {background: one.mask ? "var(--own)" : "var(--given)"};
    const value = one[by];
    if (value === undefined || value === null) return {};
    if (by === "logprob") return {background: `color-mix(in srgb, var(--bad) ${Math.min(-value / 6, 1) * 55}%, transparent)`};
    return {background: `color-mix(in srgb, var(${value < 0 ? "--bad" : "--good"}) ${Math.min(Math.abs(value) / scale, 1) * 55}%, transparent)`};
  }

  // rows of an exported page, chosen here: the sample is small
  function exportedRows(fields) {
    const {run, stage, table, start, latest, steps, least_reward: least, most_reward: most, train_step: trained, ...equal} = fields;
    const all = window.OURO_DATA[`rows ${run} ${stage} ${table}`];
    if (!all) throw new Error("not part of this exported page");
    const [first, last] = (steps || "").includes("-") ? steps.split("-").map((one) => one.trim()) : [steps, steps];
    const kept = all.filter((row) => Object.entries(equal).every(([name, value]) => value === "" || value === undefined || String(row[name]) === value || (typeof row[name] === "number" && row[name] === Number(value)))
      && (!first || row.step >= Number(first)) && (!last || row.step <= Number(last)) && (!least || (row.reward !== null && row.reward >= Number(least))) && (!most || (row.reward !== null && row.reward <= Number(most)))
      && (!trained || (row.trained_in || []).includes(Number(trained))));
    if (latest) kept.reverse();
    const at = start ? Number(start) : 0;
    return {rows: kept.slice(at, at + 50), next: at + 50 < kept.length ? String(at + 50) : null};
  }

  return {list, row, stop, exportedRows};
})();

OuroParts.rollouts = (place, at) => Ouro.part(place, () => Ouro.ask("run", {run: at.run}).then((run) => run.stages.filter((stage) => stage.tables.length).map(({name, tables}) => ({name, tables}))), (having) => {
  const {h} = Ouro, one = (name) => Ouro.one(at, name);
  if (!having.length) return h("p.note", null, "no rollouts yet");
  const stage = having.find((other) => other.name === one("stage")) || having.findLast((other) => other.tables.includes("experience")) || having.at(-1);
  const own = ["stage", "table", "start", "latest", "text", "row", "colour", "other"];
  const where = {run: at.run, stage: stage.name, table: one("table") || stage.tables[0], filters: Object.fromEntries(at.fields.filter(([key]) => !own.includes(key))),
    ...Object.fromEntries(own.slice(2).map((name) => [name, one(name)]))};
  const go = (changed) => {
    const {filters, run: _, ...rest} = {...where, ...changed};
    return Ouro.address(at.run, "rollouts", {...rest, ...filters});
  };
  return h("div", null, Ouro.links("Stages", having.map((other) => [other.name, Ouro.address(at.run, "rollouts", {stage: other.name, other: where.other}), other === stage])),
    where.row ? OuroRollouts.row(where, go) : OuroRollouts.list(where, stage, go));
});
