// The page of `ouro view`: which part is shown is in the address (#/run/PROJECT/NAME/PART?fields), so that every view
// has a link. What is shown is asked again when a run has changed.
"use strict";

const OuroView = (() => {
  const {h} = Ouro, main = document.getElementById("main"), SECONDS = 3;
  const PARTS = [["", "stages"], ["curves", "curves"], ["scores", "evaluations"], ["rollouts", "rollouts"], ["doctor", "doctor"], ["rewards", "rewards"], ["settings", "settings"], ["logs", "logs"], ["sql", "SQL"]];
  const FREE = ["runs", "new"];  // not of a single run
  const SERVED = ["rewards", "settings", "logs", "sql"];  // not part of an exported page
  let known = null;

  async function show() {
    const asked = location.hash;
    OuroRollouts.stop();
    try {
      known ||= await Ouro.ask("runs");
    } catch (error) {
      main.replaceChildren(Ouro.failed(error));
      return;
    }
    if (location.hash !== asked) return;  // another address was asked for meanwhile
    const at = Ouro.at();
    if (!at.run && !FREE.includes(at.part) && known.length) { location.replace(Ouro.address(known[0].run, "")); return; }
    around(at);
    document.title = at.run ? `${at.run}, Ouroboros` : "Ouroboros";
    document.body.dataset.part = at.part;
    main.replaceChildren();
    if (known.length || at.part === "new") (OuroParts[at.part] || OuroParts[""])(main, at);
    else main.append(h("p", {role: "status"}, "No run here yet. Start one with `ouro run`; it appears here."));
  }

  function around(at) {
    const put = (id, ...made) => {  // a focus in what did not change stays
      const place = document.getElementById(id), one = h("div", null, made);
      if (!place.firstElementChild?.isEqualNode(one)) place.replaceChildren(one);
    };
    put("runs", h("h2", null, window.OURO_DATA ? "runs" : h("a", {href: "#/runs"}, "all runs")), h("ul", null, known.map((run) => h("li", null, h(run.run === at.run ? "a.here" : "a", {
      href: Ouro.address(run.run, at.run ? at.part : ""), "aria-current": run.run === at.run ? "page" : null},
    h(`span.state.${run.state}`, {title: run.state}), h("span", null, run.run), h("span.note", null, ` ${run.complete} of ${run.stages}`))))));
    put("tabs", (OuroParts.new ? [h(at.part === "new" ? "a.here" : "a", {href: "#/new", "aria-current": at.part === "new" ? "page" : null}, "new run")] : []).concat(PARTS.filter(([part]) => at.run && !(window.OURO_DATA && SERVED.includes(part))).map(
      ([part, label]) => h(part === at.part ? "a.here" : "a", {href: Ouro.address(at.run, part), "aria-current": part === at.part ? "page" : null}, label))));
  }

  async function renew() {
    if (!document.hidden) {
      try {
        const found = await Ouro.ask("runs");
        if (JSON.stringify(found) !== JSON.stringify(known)) {
          const first = !known?.length;
          known = found;
          if (first) show(); else { around(Ouro.at()); Ouro.renewals.forEach((part) => part()); }
        }
        await machine();
      } catch (error) {
        document.getElementById("machine").replaceChildren(Ouro.failed(error));
      }
    }
    setTimeout(renew, 1000 * SECONDS);
  }

  async function machine() {
    const found = await Ouro.ask("machine");
    document.getElementById("machine").textContent = [`CPU ${Math.round(100 * found.cpu_used)}%`, `memory ${found.memory_used_gib.toFixed(1)} of ${found.memory_gib.toFixed(0)} GiB`,
      ...found.gpus.map((gpu, i) => `GPU ${i} ${Math.round(100 * gpu.used)}%, ${gpu.memory_used_gib.toFixed(0)} of ${gpu.memory_gib.toFixed(0)} GiB`)].join(" · ");
  }

  OuroParts[""] = (place, at) => Ouro.part(place, () => Ouro.ask("run", {run: at.run}), (run) => {
    const rows = run.stages.map((stage) => h("tr", null,
      h("th", {scope: "row"}, stage.tables.length ? h("a", {href: Ouro.address(at.run, "rollouts", {stage: stage.name})}, stage.name) : stage.name),
      h("td.kept", null, h(`span.state.${stage.state}`), stage.state, stage.reached ? `, ${stage.reached}` : ""),
      h("td.number", null, Ouro.duration(stage.seconds)),
      h("td.said", null, [stage.latest, ...stage.doing, stage.left_seconds === undefined ? null : `${Ouro.number(1 / stage.step_seconds)} steps/s, ${Ouro.duration(stage.left_seconds)} left`,
        stage.warning, stage.note].filter(Boolean).map((line) => h("div", null, line)), stage.problem ? h("div.failed", null, stage.problem) : null)));
    const address = (name) => (run.stages.find((other) => other.name === name).tables.length ? Ouro.address(at.run, "rollouts", {stage: name}) : Ouro.address(at.run, "curves"));
    return h("div", null, h("h2", null, run.run), OuroGraph.stages(run.stages, address),
      h("div.scroll", {tabindex: 0}, h("table", null, h("thead", null, h("tr", null, ["stage", "state", "time", ""].map((name) => h("th", {scope: "col"}, name)))), h("tbody", null, rows))),
      window.OURO_DATA ? "" : h("p.note", null, "stored in ", run.stages.length ? run.stages[0].directory.replace(/\/[^/]*$/, "") : ""));
  });

  // j and k go from row to row, / to the field that searches, r between a conversation and its tokens
  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const links = [...main.querySelectorAll("tbody tr:not([hidden])")].map((row) => row.querySelector("a")).filter(Boolean);
    const next = {j: 1, k: -1}[event.key], here = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
    const aim = next ? links[here < 0 ? 0 : here + next] : event.key === "/" ? main.querySelector("input[type=search]") : event.key === "r" ? main.querySelector("[data-raw]") : null;
    if (!aim) return;
    event.preventDefault();
    if (event.key === "r") aim.click(); else aim.focus();
  }

  window.addEventListener("hashchange", show);
  document.addEventListener("keydown", press);
  show().then(() => window.OURO_DATA || renew());
  return {runs: () => known};
})();
