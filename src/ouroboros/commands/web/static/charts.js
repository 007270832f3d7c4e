// Charts as SVG: curves over each other, estimates with intervals, the stages of a run.
"use strict";

const OuroCharts = (() => {
  const {h, draw} = Ouro, WIDE = 640, HIGH = 260, LEFT = 56, RIGHT = 12, TOP = 10, BOTTOM = 34;

  // rounded positions of about `count` marks
  function ticks(low, high, count, whole) {
    if (!(high > low)) return [low];
    const rough = whole ? Math.max((high - low) / count, 1) : (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((one) => one >= rough);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
    return found;
  }

  const range = (values) => {
    let low = Infinity, high = -Infinity;
    for (const one of values) if (Number.isFinite(one)) { low = Math.min(low, one); high = Math.max(high, one); }
    if (low > high) return [0, 1];
    return low === high ? [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2] : [low, high];
  };

  // series: [{label, x, y, low, high}]; low and high are of a band; given: {axis, points: whether points alone are drawn}
  function chart(title, series, given) {
    const xs = range(series.flatMap((one) => one.x)), ys = range(series.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]));
    const across = (x) => LEFT + (x - xs[0]) / (xs[1] - xs[0]) * (WIDE - LEFT - RIGHT);
    const up = (y) => HIGH - BOTTOM - (y - ys[0]) / (ys[1] - ys[0]) * (HIGH - TOP - BOTTOM);
    const made = draw("svg", {viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": words(title, series)});
    for (const y of ticks(...ys, 4)) {
      made.append(draw("line.grid", {x1: LEFT, x2: WIDE - RIGHT, y1: up(y), y2: up(y)}),
        draw("text.tick.end", {x: LEFT - 6, y: up(y) + 4}, Ouro.number(y)));
    }
    for (const x of ticks(...xs, 6, given.axis === "step")) made.append(draw("text.tick.middle", {x: across(x), y: HIGH - BOTTOM + 16}, Ouro.number(x)));
    made.append(draw("text.tick.middle", {x: (LEFT + WIDE) / 2, y: HIGH - 3}, given.axis || ""));
    series.forEach((one, index) => {
      const kind = `c${index % 8}`, points = one.x.map((x, i) => [across(x), up(one.y[i])]).filter(([, y]) => Number.isFinite(y));
      if (one.low) {
        const there = one.x.map((x, i) => `${across(x)} ${up(one.high[i])}`), back = one.x.map((x, i) => `${across(x)} ${up(one.low[i])}`).reverse();
        made.append(draw(`path.band.${kind}`, {d: `M${[...there, ...back].join("L")}Z`}));
      }
      if (!given.points) made.append(draw(`path.curve.${kind}`, {d: points.length ? `M${points.map((p) => p.join(" ")).join("L")}` : ""}));
      if (given.points || points.length < 40) for (const [x, y] of points) made.append(draw(`circle.dot.${kind}`, {cx: x, cy: y, r: 3}));
    });
    const shown = h("figure", null, h("figcaption", null, title), made, legend(series));
    hover(made, shown, series, across, up, xs);
    return shown;
  }

  const words = (title, series) => `${title}: ` + series.map((one) => `${one.label} from ${Ouro.number(one.y[0])} to ${Ouro.number(one.y.at(-1))}`).join("; ");

  const legend = (series) => h("ul.legend", null, series.map((one, index) => h("li", null, h(`span.mark.c${index % 8}`), one.label)));

  // the values under the pointer, of every series at the nearest of its points
  function hover(made, shown, series, across, up, xs) {
    const line = draw("line.cursor", {y1: TOP, y2: HIGH - BOTTOM}), told = h("p.note.values", {"aria-live": "off"}, "\u00a0");
    shown.append(told);
    made.addEventListener("pointermove", (event) => {
      const box = made.getBoundingClientRect(), x = xs[0] + ((event.clientX - box.left) / box.width * WIDE - LEFT) / (WIDE - LEFT - RIGHT) * (xs[1] - xs[0]);
      const found = series.filter((one) => one.x.length).map((one) => {
        let best = 0;
        one.x.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(one.x[best] - x)) best = i; });
        return [one.label, one.x[best], one.y[best]];
      });
      if (!found.length) return;
      line.setAttribute("x1", across(found[0][1]));
      line.setAttribute("x2", across(found[0][1]));
      made.append(line);
      told.textContent = found.map(([label, at, y]) => `${label}: ${Ouro.number(y)} at ${Ouro.number(at)}`).join("; ");
    });
    made.addEventListener("pointerleave", () => { line.remove(); told.textContent = "\u00a0"; });
  }

  // boxes from left to right by the longest path; stages: [{name, inputs, state, words}]
  function stages(found, chosen, address) {
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
      box.setAttribute("class", `stage ${one.state}${one.name === chosen ? " chosen" : ""}`);
      box.append(draw("title", null, `${one.name}: ${one.state} ${one.reached}`),
        draw("rect", {x: left(one.name), y: top(one.name), width: W, height: H, rx: 7}),
        draw("text.name", {x: left(one.name) + W / 2, y: top(one.name) + 23}, one.name.length > 20 ? `${one.name.slice(0, 19)}…` : one.name),
        draw("text.words", {x: left(one.name) + W / 2, y: top(one.name) + 41},
          [one.state, one.reached || (one.seconds === null ? "" : Ouro.duration(one.seconds))].filter(Boolean).join(", ")));
      made.append(box);
    }
    return h("div.scroll", {tabindex: 0}, made);
  }

  return {chart, stages};
})();
