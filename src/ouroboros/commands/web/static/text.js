// Texts of models as elements: turns of a chat, Markdown, formulas as MathML. Every element is made here of the tokens of
// a parser (vendor/marked); links and pictures stay text, and so does HTML: nothing that a model writes is run or fetched.
"use strict";

const OuroText = (() => {
  const {h} = Ouro, LONGEST = 100000;  // characters; longer texts stay as they are
  // how chat templates write a turn: its role, its text
  const TURNS = [
    /<\|im_start\|>(\w+)\n([\s\S]*?)(?:<\|im_end\|>\n?|$)/g,
    /<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n([\s\S]*?)(?:<\|eot_id\|>|$)/g,
    /<start_of_turn>(\w+)\n([\s\S]*?)(?:<end_of_turn>\n?|$)/g,
    /<\|(system|user|assistant|tool)\|>\n?([\s\S]*?)(?:<\|end\|>\n?|(?=<\|(?:system|user|assistant|tool)\|>)|$)/g,
    /<｜(User|Assistant)｜>([\s\S]*?)(?:<｜end▁of▁sentence｜>|(?=<｜(?:User|Assistant)｜>)|$)/g,
  ];
  const MATH = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\]|\\\(([\s\S]+?)\\\)|\$(?!\s)((?:\\.|[^\\$\n])+?)(?<!\s)\$(?!\d))/;
  const TAGS = {paragraph: "p", strong: "strong", em: "em", del: "s", blockquote: "blockquote", list_item: "li"};
  let parser = null;

  function marked() {
    parser ||= new window.marked.Marked({tokenizer: {html() {}, tag() {}}, extensions: [{name: "math", level: "inline", start: (text) => { const at = text.search(/\$|\\[[(]/); return at < 0 ? undefined : at; },
      tokenizer: (text) => { const found = MATH.exec(text); return found ? {type: "math", raw: found[0], display: Boolean(found[1] || found[2]), formula: found.slice(1).find(Boolean)} : undefined; }}]});
    return parser;
  }

  const all = (tokens) => tokens.map(element);
  const cells = (row, tag) => h("tr", null, row.map((cell) => h(tag, null, all(cell.tokens))));
  const KINDS = {
    space: () => null, br: () => h("br"), hr: () => h("hr"),
    heading: (one) => h(`h${Math.min(one.depth + 3, 6)}`, null, all(one.tokens)),
    code: (one) => h("pre", null, h("code", null, one.text)),
    codespan: (one) => h("code", null, one.text),
    escape: (one) => one.text,
    checkbox: (one) => one.raw,
    list: (one) => h(one.ordered ? "ol" : "ul", one.ordered ? {start: one.start} : null, all(one.items)),
    table: (one) => h("div.scroll", null, h("table", null, h("thead", null, cells(one.header, "th")), h("tbody", null, one.rows.map((row) => cells(row, "td"))))),
    link: (one) => h("span", null, all(one.tokens), one.text === one.href ? "" : ` (${one.href})`),
    text: (one) => (one.tokens ? h("span", null, all(one.tokens)) : one.raw),
    math: (one) => formula(one),
  };

  const element = (one) => (Object.hasOwn(KINDS, one.type) ? KINDS[one.type](one) : TAGS[one.type] ? h(TAGS[one.type], null, all(one.tokens)) : one.raw);

  function formula(one) {
    const made = h("span.math");
    try {
      window.temml.render(one.formula, made, {displayMode: one.display, throwOnError: true, trust: false, maxExpand: 100, maxSize: [10, 100]});
      return made;
    } catch {
      return h("code", null, one.raw);
    }
  }

  function markdown(text) {
    try {
      if (text.length <= LONGEST && window.marked) return h("div.text-of", null, all(marked().lexer(text)));
    } catch { /* nests too deep */ }
    return h("pre", null, text);
  }

  // [{role, text}] of a text that a chat template made; null of another one. What is between turns has no role
  function turns(text) {
    for (const pattern of TURNS) {
      const found = [];
      let at = 0;
      for (const match of text.matchAll(pattern)) {
        if (match.index > at) found.push({role: "", text: text.slice(at, match.index)});
        found.push({role: match[1].toLowerCase(), text: match[2]});
        at = match.index + match[0].length;
      }
      if (found.length) return at < text.length ? [...found, {role: "", text: text.slice(at)}] : found;
    }
    return null;
  }

  // a prompt and the response to it as turns; without a chat template as two texts
  const conversation = (prompt, response) => h("div.turns", null, (turns(prompt + response) || [{role: "prompt", text: prompt}, {role: "response", text: response}]).filter((turn) => turn.text.trim()).map(
    (turn) => h(turn.role ? `section.turn.${turn.role}` : "section.turn", null, h("p.label", null, turn.role), markdown(turn.text))));

  // what the end of a prompt asks: its last turn that has a text
  const asked = (prompt) => (turns(prompt) || [{text: prompt}]).findLast((turn) => turn.text.trim())?.text || "";

  return {conversation, markdown, asked};
})();
