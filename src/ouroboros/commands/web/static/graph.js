// The graph of a run: boxes from left to right by the longest path, with what each reads.
"use strict";

const OuroGraph = (() => {
  const {h, draw} = Ouro;

  // found: [{name, kind, inputs, state, reached, seconds}]; address: name of a stage -> where its box leads
  function stages(found, address) {
    const column = {}, taken = new Set(), lane = {}, W = 168, H = 54, ACROSS = 34, DOWN = 18;
    for (const one of found) {
      column[one.name] = Math.max(0, ...one.inputs.map((name) => column[name] + 1));
      lane[one.name] = /^(model|evaluate|bench|report)/.test(one.kind) ? 1 : 0;
      while (taken.has(`${column[one.name]} ${lane[one.name]}`)) lane[one.name] += 1;
      taken.add(`${column[one.name]} ${lane[one.name]}`);
    }
    const left = (name) => 8 + column[name] * (W + ACROSS), top = (name) => 8 + lane[name] * (H + DOWN);
    const wide = 16 + (Math.max(...Object.values(column)) + 1) * (W + ACROSS) - ACROSS, high = 16 + (Math.max(...Object.values(lane)) + 1) * (H + DOWN);
    const made = draw("svg.stages", {viewBox: `0 0 ${wide} ${high}`, style: {minWidth: `${wide * 0.7}px`}, role: "group", "aria-label": "Stages"});
    const above = {};  // stages before a stage, at any distance
    found.forEach((one, number) => {
      above[one.name] = new Set(one.inputs.flatMap((name) => [name, ...above[name]]));
      for (const from of one.inputs.filter((name) => !one.inputs.some((other) => other !== name && above[other].has(name)))) {
        const x0 = left(from) + W, y0 = top(from) + H / 2, x1 = left(one.name), y1 = top(one.name) + H / 2, bend = ACROSS / 2;
        const barred = found.some(({name}) => lane[name] === lane[from] && column[name] > column[from] && column[name] < column[one.name]);
        // then between the rows, towards its end, each end on a line for itself
        const side = lane[one.name] > lane[from] || !lane[from] ? 1 : -1, y = barred ? y0 + side * (H + DOWN) / 2 + 3 * (number % 5 - 2) : y0;
        made.append(draw("path.edge", {d: `M${x0} ${y0}${barred ? `C${x0 + bend} ${y0} ${x0 + bend} ${y} ${x0 + ACROSS} ${y}` : ""}H${x1 - ACROSS}C${x1 - bend} ${y} ${x1 - bend} ${y1} ${x1} ${y1}`}));
      }
    });
    for (const one of found) {
      const box = document.createElementNS("http://www.w3.org/2000/svg", "a");
      box.setAttribute("href", address(one.name));
      box.setAttribute("class", `stage ${one.state}`);
      box.append(draw("title", null, `${one.name}: ${one.state} ${one.reached}`),
        draw("rect", {x: left(one.name), y: top(one.name), width: W, height: H, rx: 7}),
        draw("text.name", {x: left(one.name) + W / 2, y: top(one.name) + 23}, one.name.length > 20 ? `${one.name.slice(0, 19)}…` : one.name),
        draw("text.words", {x: left(one.name) + W / 2, y: top(one.name) + 41},
          [one.state, one.reached || (one.seconds === null ? "" : Ouro.duration(one.seconds))].filter(Boolean).join(", ")));
      made.append(box);
    }
    return h("div.scroll", {tabindex: 0}, made);
  }

  return {stages};
})();
