// A setting as a field: control, meaning, bounds, default, and what is wrong with it. What is said of it comes from the
// server (pipeline/check/fields.py); no setting is named here.
"use strict";

const StudioForm = (() => {
  const {h} = Ouro, WAIT = 400;  // milliseconds after the last letter
  let number = 0;

  // the element of a field, and a function that shows the state again: what is written, inherited, wrong
  function field(about, set, suggested) {
    const id = `field-${number += 1}`, long = /^(list|dict)/.test(about.type), listed = about.names.length > 0 || suggested.length > 0;
    const choices = about.type.startsWith("bool") ? ["true", "false"] : about.choices;
    const given = {id, name: about.key, "aria-describedby": `${id}-about ${id}-wrong`, spellcheck: "false", autocomplete: "off"};
    const control = choices.length ? h("select", given, h("option", {value: ""}, ""), choices.map((one) => h("option", {value: one}, one)))
      : long ? h("textarea", {...given, rows: 2}) : h("input", {...given, type: "text", list: listed ? `${id}-names` : null});
    const clear = h("button", {type: "button", title: "leave it out of the recipe", "aria-label": `leave out ${about.key}`, onclick: () => { control.value = ""; commit(); }}, "×");
    const wrong = h("div.failed", {id: `${id}-wrong`, "aria-live": "polite"}), source = h("span");
    let timer = null, sent = null;
    const commit = () => {
      clearTimeout(timer);
      if (control.value === sent) return;
      sent = control.value;
      set(about, control.value === "" ? null : control.value);
    };
    control.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(commit, WAIT); });
    control.addEventListener("change", commit);
    const names = listed ? [h("datalist", {id: `${id}-names`}, [...about.names.map(([name]) => name), ...suggested].map((name) => h("option", {value: name}))),
      about.names.some(([, what]) => what) ? h("details", null, h("summary", null, `the ${about.names.length} there are`), h("div.choices", null, about.names.map(([name, what]) => [
        h("button", {type: "button", onclick: () => { control.value = name; commit(); }}, name), h("span", null, what)]))) : null] : null;
    const last = about.key.split(".").at(-1), above = about.key.slice(0, -last.length - 1);
    const facts = [about.type, about.bounds, about.default === null ? "needed" : `default ${about.default}`, about.how ? "changes no result" : null].filter(Boolean).join(" · ");
    const element = h("div.field", {"data-key": about.key}, h("label", {for: id}, h("span.name", null, last), h("span.note", null, above)),
      h("div", null, h("div.control", null, control, clear), h("div", {id: `${id}-about`}, h("div", null, about.meaning), h("div.note", null, facts, source)), names, wrong));

    function update(state) {
      const written = state.written(about.key), inherited = state.inherited(about.key) ?? about.default ?? "";
      element.classList.toggle("set", state.sets(about.key));
      clear.hidden = !state.sets(about.key);
      if (document.activeElement !== control || sent === null) {
        control.value = written ?? "";
        if (choices.length && written !== undefined && control.value !== written) {  // no choice: shown all the same
          control.append(h("option", {value: written}, written));
          control.value = written;
        }
        sent = control.value;
      }
      const usual = inherited === (about.default ?? "");
      if (choices.length) control.options[0].textContent = usual ? `default: ${inherited}` : inherited;
      else control.placeholder = inherited.length > 200 ? `${inherited.slice(0, 200)}…` : inherited;
      const found = state.problems(about.key), bad = found.some((one) => one.bad);
      const differs = written !== undefined && !long && !bad && written !== inherited && Number(written) !== Number(inherited);  // an interpolation, or a group that is chosen over the recipe
      source.textContent = differs ? ` · in effect: ${inherited}` : written === undefined && !usual ? ` · here ${inherited.length > 60 ? "another value" : inherited}, from elsewhere` : "";
      control.setAttribute("aria-invalid", bad ? "true" : "false");
      wrong.className = bad ? "failed" : "warning";
      wrong.replaceChildren(...found.map((one) => h("div", null, one.needed && one.key === about.key ? [one.needed, one.do].filter(Boolean).join(" ") : one.text)));
    }
    return {element, update, key: about.key};
  }

  // fields of a key with `*`, one of each element that is there
  function instances(about, keys) {
    if (!about.key.includes("*")) return [about];
    const pattern = new RegExp(`^${about.key.split("*").map((part) => part.replace(/\./g, "\\.")).join("[^.]+")}$`);
    return [...new Set(keys)].filter((key) => pattern.test(key)).map((key) => ({...about, key}));
  }

  // beside the path of a set of rows: what its columns are, as `ouro init` reads them, and a button that sets them
  function columns(key, known, state, set) {
    const place = h("div", {"aria-live": "polite"}), section = key.replace(/path$/, "format");
    const read = () => {
      place.replaceChildren();
      Ouro.part(place, async () => {
        const path = document.getElementsByName(key)[0].value || state.inherited(key);  // as typed, judged or not
        if (!path) throw new Error(`${key} is empty: name a file of rows first.`);
        const found = await Ouro.post("studio/columns", {path}), chosen = Object.entries(found.format).filter(([name]) => known.has(`${section}.${name}`));
        const take = () => chosen.forEach(([name, value]) => set(known.get(`${section}.${name}`), value === null ? "null" : String(value)));
        return h("div", null, h("ul", null, found.notes.map((note) => h("li", null, note))), found.rewritten ? h("p.warning", null, "Stages cannot read these rows as they are: a new recipe, for your data and model, writes them anew.")
          : h("button", {type: "button", onclick: take}, `take ${chosen.map(([name, value]) => `${name}: ${value}`).join(", ")}`));
      });
    };
    return h("div.field", null, h("span.note", null, `columns of ${key}`), h("div", null, h("button", {type: "button", onclick: read}, "read its columns"), place));
  }

  return {field, instances, columns};
})();
