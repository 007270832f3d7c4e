// Curves over each other, with bands and shares of values, by uPlot (vendor/).
"use strict";

const OuroCharts = (() => {
  const {h} = Ouro, HIGH = 230, STEPS = Array.from({length: 24}, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)), zoomed = {};  // title -> what is shown of the horizontal axis, where not all
  const ink = (name, clear = "") => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim() + clear;

  // means of neighbouring points with Gaussian weights, standard deviation `width` points: without lag, as in the report
  function smooth(values, width) {
    const reach = Math.ceil(3 * width);
    return values.map((value, i) => {
      let sum = 0, all = 0;
      for (let j = Math.max(0, i - reach); j <= Math.min(values.length - 1, i + reach); j++) {
        if (values[j] === null) continue;
        const weight = Math.exp(-(((i - j) / width) ** 2) / 2);
        sum += weight * values[j];
        all += weight;
      }
      return value === null ? null : sum / all;
    });
  }

  // series: [{label, x, y, low, high}], low and high of a band; given: {axis; points: without lines; log; smooth: a width
  // in points; shares: {low, high, of: for each x, of each bin between low and high}}
  function chart(title, series, given) {
    const tables = [], value = (_, at) => (at === null || at === undefined ? "" : Ouro.number(at)), lines = [{label: given.axis || "", value}], bands = [];
    const add = (values, line) => { tables.at(-1).push(given.log ? values.map((one) => (one > 0 ? one : null)) : values); lines.push(line); };
    series.forEach((one, index) => {
      const colour = `--c${index % 8}`, few = one.x.length < 40;
      tables.push([one.x]);
      if (given.smooth) add(one.y, {class: "behind", stroke: ink(colour, "40"), width: 1, points: {show: false}});
      add(given.smooth ? smooth(one.y, given.smooth) : one.y, {label: one.label, stroke: ink(colour), width: 2, spanGaps: true,
        value, points: {show: given.points || (few && !given.smooth), size: 5, fill: ink(colour)}, ...(given.points ? {paths: () => null} : {})});
      if (!one.low) return;
      bands.push({series: [lines.length, lines.length + 1], fill: ink(colour, "2e")});
      for (const edge of [one.high, one.low]) add(edge, {class: "behind", stroke: ink(colour, "00"), points: {show: false}});
    });
    const place = h("div.plot", {role: "img", "aria-label": words(title, series)}), size = {width: 400, height: HIGH};
    const axis = {stroke: ink("--muted"), font: "11px system-ui, sans-serif", grid: {stroke: ink("--grid"), width: 1}, ticks: {show: false},
      values: (_, marks) => marks.map((one) => (one === null ? "" : Ouro.number(one)))};
    const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
    const plot = new uPlot({...size, series: lines, bands, cursor: {sync: {key: given.axis}, focus: {prox: 24}},
      scales: {x: {time: false}, y: given.log ? {distr: 3} : given.shares ? {range: (_, low, high) => [Math.min(low, given.shares.low), Math.max(high, given.shares.high)]} : {}}, axes: [{...axis, size: 34, incrs: given.axis === "step" ? STEPS : undefined}, {...axis, size: 58}],
      hooks: {setScale: [(shown, key) => { if (key === "x") keep(title, shown); }], drawClear: given.shares ? [(shown) => paint(shown, given.shares)] : []}}, data, place);
    if (zoomed[title]) plot.setScale("x", zoomed[title]);
    const fit = () => plot.setSize({...size, width: Math.max(place.clientWidth, 100)}), end = () => { watch.disconnect(); plot.destroy(); };
    const watch = new ResizeObserver(() => (place.isConnected ? fit() : end()));
    watch.observe(place);
    return h("figure", null, h("figcaption", null, title, h("button.small", {type: "button", onclick: () => Ouro.save(`${title}.png`, plot.ctx.canvas.toDataURL())}, "PNG"),
      h("button.small", {type: "button", onclick: () => Ouro.csv(`${title}.csv`, [lines.map((one) => one.label || "band"), ...data[0].map((_, i) => data.map((column) => column[i]))])}, "CSV")), place);
  }

  const words = (title, series) => `${title}: ` + series.map((one) => `${one.label} from ${Ouro.number(one.y[0])} to ${Ouro.number(one.y.at(-1))}`).join("; ");

  function keep(title, {scales: {x: {min, max}}, data: [all]}) {
    if (min > all[0] || max < all.at(-1)) zoomed[title] = {min, max}; else delete zoomed[title];
  }

  // for each x a column of cells, darker where more of its values are
  function paint(shown, {low, high, of}) {
    const {ctx} = shown, xs = shown.data[0], at = xs.map((x) => shown.valToPos(x, "x", true)), most = Math.max(...of.flat());
    ctx.save();
    ctx.beginPath();
    ctx.rect(shown.bbox.left, shown.bbox.top, shown.bbox.width, shown.bbox.height);
    ctx.clip();
    ctx.fillStyle = ink("--c0")();
    of.forEach((shares, i) => {
      const left = i ? (at[i - 1] + at[i]) / 2 : shown.bbox.left, right = i + 1 < at.length ? (at[i] + at[i + 1]) / 2 : shown.bbox.left + shown.bbox.width;
      shares.forEach((share, bin) => {
        const edge = (n) => shown.valToPos(low + (high - low) * n / shares.length, "y", true);
        ctx.globalAlpha = 0.75 * Math.sqrt(share / most);
        if (share) ctx.fillRect(left, edge(bin + 1), right - left, edge(bin) - edge(bin + 1));
      });
    });
    ctx.restore();
  }

  return {chart, zoomed};
})();
