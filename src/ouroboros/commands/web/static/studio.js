// The tab "new run", which `ouro studio` adds: one recipe, as a form for beginners, a form of every setting, and as its
// text. The text is the recipe: a field asks the server to change its key there, and shows what the server reads in it.
"use strict";

OuroParts.new = (() => {
  const {h} = Ouro, main = h("div.form"), panel = h("aside", {id: "panel", "aria-label": "What is found"}), bar = h("div", {id: "bar"}), both = h("div.studio", null, main, panel);
  const address = (file) => `#/new${file ? `?${Ouro.query({file})}` : ""}`;
  const PAGES = [["beginner", "first questions"], ["expert", "every setting"], ["text", "text"]];
  const MOST = 80;  // fields of a search
  let form = null, shown = [], queue = Promise.resolve(), judging = null;
  let now = null;  // {file, text, saved, digest, told, scope, page, search}

  const post = (name, asked) => Ouro.post(`studio/${name}`, asked || {});
  const said = h("div", {"aria-live": "polite"}), say = (...told) => said.replaceChildren(...told);
  const fail = (error) => say(Ouro.failed(error));

  // ------------------------------------------------------------------------------------------------ which recipe

  async function choose() {
    form = await post("form");
    now = null;
    bar.replaceChildren();
    const open = (file) => h("a", {href: address(file)}, file);
    const list = (title, ones) => (ones.length ? [h("h2", null, title), h("div.recipes", null, Ouro.table([["recipe", (one) => open(one.file)], ["", (one) => one.about]], ones))] : []);
    main.replaceChildren(...fresh(), said);
    panel.replaceChildren(h("p.note", null, `recipes of ${form.directory}`), ...list("recipes here", form.recipes.filter((one) => !one.shipped)), ...list("shipped: opened as a new file", form.recipes.filter((one) => one.shipped)));
  }

  function fresh() {
    const input = (label, name, given) => h("label.wide", null, h("span", null, label), h("input", {name, spellcheck: "false", list: `new-${name}`, ...given}), h("datalist", {id: `new-${name}`}, ({data: form.suggestions.data, model: form.suggestions.models}[name] || []).map((one) => h("option", {value: one}))));
    const make = async (event) => {
      event.preventDefault();
      const asked = Object.fromEntries(new FormData(event.currentTarget));
      say(h("p.note", null, `reads ${asked.data} and ${asked.model}…`));
      try {
        const made = await post("new", asked);
        begin(made);
        say(h("ul", null, made.notes.map((note) => h("li", null, note))));
      } catch (error) { fail(error); }
    };
    const empty = (event) => {
      event.preventDefault();
      begin({text: `name: ${event.currentTarget.elements.name.value.trim()}\n`, file: `conf/recipe/${event.currentTarget.elements.name.value.trim()}.yaml`, digest: null});
    };
    return [h("h2", null, "a new one, for your data and model"), h("p.note", null, "As ouro init does: the columns of the data say what it is for; lengths, batches and rates follow from it and the model."),
      h("form.row", {onsubmit: make}, input("data: jsonl, parquet, csv, a directory", "data", {required: true}), input("model: its directory", "model", {required: true}), input("name", "name", {value: "first", pattern: "\\w[\\w\\-]*", required: true}),
        input("column of the prompt, where it is asked for", "prompt_key"), input("column of the answer, where it is asked for", "response_key"), h("button.main", {type: "submit"}, "make")),
      h("h2", null, "an empty one"), h("form.row", {onsubmit: empty}, input("name", "name", {value: "mine", pattern: "\\w[\\w\\-]*", required: true}), h("button", {type: "submit"}, "begin"))];
  }

  function begin(opened) {
    Object.assign(asides, {sweep: null, words: [], measured: null, prompted: null});
    measuring.replaceChildren();
    prompting.replaceChildren();
    now = {...opened, saved: opened.digest ? opened.text : null, told: null, refused: {}, scope: "", page: (now && now.page) || "beginner", search: ""};
    panel.replaceChildren(h("p.note", null, `reads ${now.file}…`));
    history.replaceState(null, "", address(now.file));
    say();
    toolbar();
    draw();
    judge(0);
  }

  // ------------------------------------------------------------------------------------------------ what is typed

  function set(about, value) {
    const scope = now.scope, of = now;
    panel.setAttribute("aria-busy", "true");  // what stands there is of before
    queue = queue.then(async () => {
      try {
        of.text = (await post("edit", {text: of.text, stage: scope, key: about.key, value, field: {text: about.text, meaning: about.meaning}})).text;
        delete of.refused[about.key];
        say();
      } catch (error) { of.refused[about.key] = error.message; }
      if (of === now) judge(0);
    });
  }

  function judge(wait) {
    clearTimeout(judging);
    panel.setAttribute("aria-busy", "true");
    dirty();
    judging = setTimeout(async () => {
      const of = now, text = now.text, told = await post("judge", {text, file: of.file}).catch(fail);
      if (!told) return;
      if (of !== now || text !== now.text) return;
      const before = now.told || {}, functions = JSON.stringify(before.arguments), stages = JSON.stringify(Object.keys(before.values || {}));
      now.told = {...before, ...told};
      if (now.told.values && now.scope && !(now.scope in now.told.values)) now.scope = "";
      if (now.page !== "text" && (JSON.stringify(now.told.arguments) !== functions || JSON.stringify(Object.keys(now.told.values || {})) !== stages)) draw();
      update();
      panel.removeAttribute("aria-busy");
    }, wait);
  }

  const state = {
    texts: (kind, key, scope) => ((now.told && now.told[kind] && now.told[kind][scope]) || {})[key],
    written: (key) => state.texts("written", key, now.scope),
    inherited: (key) => state.texts("values", key, now.scope),
    sets: (key) => Object.keys((now.told && now.told.written && now.told.written[now.scope]) || {}).some((one) => one === key || one.startsWith(`${key}.`)),
    problems: (key) => !now.told ? [] : [...(key in now.refused ? [{text: now.refused[key], bad: true, key}] : []), ...now.told.problems.map((one) => ({...one, bad: true})), ...now.told.warnings].filter((one) => one.key && (one.key === key || (one.key.startsWith(`${key}.`) && !shown.some((other) => other.key !== key && other.key.startsWith(`${key}.`) && one.key.startsWith(other.key)))) &&
      (!(one.stages || []).length || !now.scope || one.stages.includes(now.scope))),
  };

  const update = () => {
    shown.forEach((one) => one.update(state));
    aside();
    dirty();
  };

  // ------------------------------------------------------------------------------------------------ the form

  const pages = () => h("nav.tabs", {"aria-label": "Pages of the recipe"}, PAGES.map(([page, label]) => h(page === now.page ? "a.here" : "a", {href: "#", "aria-current": page === now.page ? "page" : null, onclick: (event) => {
    event.preventDefault();
    now.page = page;
    draw();
    update();
  }}, label)));

  function draw() {
    shown = [];
    const focused = document.activeElement && document.activeElement.name;
    main.replaceChildren(pages(), ...{beginner, expert, text}[now.page]());
    if (focused) { const again = main.querySelector(`[name="${CSS.escape(focused)}"]`); if (again) again.focus(); }
  }

  const suggested = (key) => (key.endsWith("model_path") ? form.suggestions.models : key.endsWith(".path") ? form.suggestions.data : []);

  function fields(abouts) {
    return abouts.map((about) => {
      const made = StudioForm.field(about, set, suggested(about.key));
      shown.push(made);
      if (now.told) made.update(state);
      return made.element;
    });
  }

  // every setting that there is now: elements of lists, and arguments of the chosen functions, too
  function all() {
    const told = now.told || {}, keys = Object.keys((told.values || {})[now.scope] || {});
    const own = ((told.arguments || {})[now.scope] || []);
    return [...form.fields.flatMap((one) => StudioForm.instances(one, keys)), ...own].filter((one) => !(now.scope && one.run_wide));
  }

  function scopes() {
    const names = Object.keys((now.told && now.told.written) || {}).filter(Boolean);
    return names.length ? h("label", null, h("span", null, "settings of"), h("select", {onchange: (event) => { now.scope = event.currentTarget.value; draw(); update(); }},
      h("option", {value: ""}, "the whole run"), names.map((name) => h("option", {value: name, selected: name === now.scope}, `stage ${name}`)))) : null;
  }

  function beginner() {
    const there = all(), known = new Map(there.map((one) => [one.key, one]));
    return [scopes() || "", ...form.questions.map(([title, asks, keys]) => h("section.question", null, h("h2", null, title, h("span", null, asks)),
      fields(keys.flatMap((key) => {
        const own = there.filter((one) => one.key.startsWith(`${key}.`));
        return key.endsWith("_args") ? own : there.filter((one) => one.key === key);
      })), keys.filter((key) => key.endsWith(".path")).map((key) => StudioForm.columns(key, known, state, set))))];
  }

  function expert() {
    const place = h("div");
    const search = h("input", {type: "search", "aria-label": "Search settings", placeholder: "search settings: lr, tokens, GPU memory…", value: now.search, oninput: (event) => { now.search = event.currentTarget.value; fill(); }});
    const fill = () => {
      shown = [];
      const words = now.search.toLowerCase().split(/\s+/).filter(Boolean), there = all();
      if (words.length) {
        const hits = there.filter((one) => words.every((word) => `${one.key} ${one.meaning}`.toLowerCase().includes(word)));
        place.replaceChildren(h("p.note", {role: "status"}, hits.length > MOST ? `the first ${MOST} of ${hits.length}` : `${hits.length} settings`), ...fields(hits.slice(0, MOST)));
        return;
      }
      const groups = new Map();
      for (const one of there) {
        const group = one.key.includes(".") ? one.key.split(".")[0] : "the run";
        groups.set(group, [...(groups.get(group) || []), one]);
      }
      place.replaceChildren(...[...groups].map(([group, ones]) => {
        const many = h("details", {ontoggle: (event) => { if (event.currentTarget.open && many.children.length === 1) many.append(...fields(ones)); }},
          h("summary", null, group, h("span.note", null, ` ${ones.filter((one) => state.sets(one.key)).length} of ${ones.length} set here`)));
        return many;
      }));
    };
    fill();
    return [h("div.row", null, h("label.wide", null, h("span", null, "search"), search), scopes()), place];
  }

  function text() {
    const box = h("textarea", {id: "text", name: "text", spellcheck: "false", "aria-label": "Text of the recipe", oninput: () => { now.text = box.value; judge(400); }}, now.text);
    queue.then(() => { if (document.activeElement !== box) box.value = now.text; });
    return [box];
  }

  // to the field of a problem
  function show(problem) {
    now.scope = (problem.stages || [])[0] && now.told.written[problem.stages[0]] ? problem.stages[0] : "";
    now.page = "expert";
    now.search = problem.key;
    draw();
    update();
    const control = main.querySelector(".field input, .field select, .field textarea");
    if (control) control.focus();
  }

  // ------------------------------------------------------------------------------------------------ save and start

  function toolbar() {
    const file = h("input", {"aria-label": "File", value: now.file, spellcheck: "false", onchange: () => {
      if (file.value !== now.file) Object.assign(now, {file: file.value.trim(), digest: null, saved: null});
      dirty();
    }});
    bar.replaceChildren(h("div.row", null, file, h("span#state.note", {id: "state"}), h("button", {type: "button", id: "save", onclick: () => save().catch(fail)}, "save"),
      h("button.main", {type: "button", id: "start", onclick: () => start().catch(fail)}, "save and start")), said);
  }

  function dirty() {
    const place = document.getElementById("state"), same = now && now.saved === now.text;
    if (!place || !now) return;
    place.textContent = same ? "saved" : now.digest ? "changed" : "not saved yet";
    document.getElementById("save").disabled = same;
    document.getElementById("start").disabled = !now.told || now.told.problems.length > 0;
  }

  async function save() {
    await queue;
    const text = now.text, {digest} = await post("save", {file: now.file, text, digest: now.digest});
    Object.assign(now, {digest, saved: text});
    history.replaceState(null, "", address(now.file));
    say();
    dirty();
  }

  async function start() {
    await queue;
    if (now.saved !== now.text) await save();
    say(h("p.note", null, "ouro run checks and starts…"));
    document.getElementById("start").disabled = true;
    try {
      const made = await post("start", {file: now.file, words: asides.words});
      say(h("pre", null, made.said), made.page ? h("p", null, h("a", {href: made.page, id: "running"}, "show the run")) : h("p.note", null, "its runs are below another directory (checkpoint_root_dir): ouro view --root shows them"));
      bar.scrollIntoView();
    } finally { dirty(); }
  }

  // ------------------------------------------------------------------------------------------------ beside the form

  const measuring = h("div", {"aria-live": "polite"}), prompting = h("div", {"aria-live": "polite"}), task = h("input", {type: "number", min: 0, value: 0, "aria-label": "Number of the task"});
  const asides = {sweep: null, words: [], measured: null, prompted: null};  // the words of a sweep, and the texts of which more was asked
  const slow = (place, button, name, work) => async () => {
    place.replaceChildren();
    asides[name] = now.text;
    button().disabled = true;
    await new Promise((done) => { Ouro.part(place, () => work().finally(done)); });
    button().disabled = false;
  };
  const measure = h("button", {type: "button", onclick: slow(measuring, () => measure, "measured", async () => {
    const told = await post("measure", {text: now.text, file: now.file});
    return h("div", null, StudioPanel.found(told, show), StudioPanel.numbers(told), StudioPanel.unjudged(told));
  })}, "read data, model and code");
  const prompt = h("button", {type: "button", onclick: slow(prompting, () => prompt, "prompted", async () => {
    const told = await post("prompt", {text: now.text, file: now.file, stage: "", task: Number(task.value)});
    return h("pre", null, told.text);
  })}, "show a prompt");
  const old = (name) => (asides[name] !== null && asides[name] !== now.text ? h("p.warning", null, "of the recipe before it was changed:") : "");

  function aside() {
    if (!now.told) return;
    asides.sweep = asides.sweep || StudioPanel.sweep(form.fields.filter((one) => !one.key.includes("*")).map((one) => one.key), (words, points) => {
      asides.words = words;
      document.getElementById("start").textContent = words.length ? `save and start ${points} runs` : "save and start";
    });
    panel.replaceChildren(h("div", null, StudioPanel.found(now.told, show)), h("div", null, StudioPanel.numbers(now.told)), ...StudioPanel.times(now.told, form.paces), ...StudioPanel.stages(now.told), StudioPanel.unjudged(now.told) || "",
      h("h2", null, "data, memory, prompts"), h("div.row", null, measure), old("measured"), measuring, h("p.note", null, "A task as the model sees it, and what its own answer earns:"), h("div.row", null, task, prompt), old("prompted"), prompting, asides.sweep);
  }

  // ------------------------------------------------------------------------------------------------ the page

  async function route(file) {
    try {
      form = form || await post("form");
      if (now && now.saved !== now.text && now.file !== file && !window.confirm(`${now.file} is not saved. Leave it?`)) {
        history.replaceState(null, "", address(now.file));
        return;
      }
      if (!file) await choose();
      else if (!now || now.file !== file) begin(await post("open", {file}));
    } catch (error) { main.replaceChildren(Ouro.failed(error), h("p", null, h("a", {href: address()}, "all recipes"))); }
  }

  window.addEventListener("beforeunload", (event) => { if (now && now.saved !== now.text && now.text) event.preventDefault(); });
  window.addEventListener("keydown", (event) => { if (now && both.isConnected && event.key === "s" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); save().catch(fail); } });
  return (place, at) => {
    place.append(bar, both);
    route(Ouro.one(at, "file"));
  };
})();
