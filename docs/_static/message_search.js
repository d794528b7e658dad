// A pasted error message leads to its section on a page of messages, whatever its numbers are and whatever stands around
// it. Sphinx's own search wants every word of the query on one page; its results follow after ours, as they were.
"use strict";

{
  const ENOUGH = 0.5; // of the shorter one, message or query, must be in the other
  const SHOWN = 3;
  const NOTHING = "No section fits. Try the last line alone, without numbers, paths and names, or look through the list below.";
  // what people leave out, or put in, when they write a message from memory
  const LITTLE = "a an and are at attribute be been by for from in is it its my of on or that the this to was why with you your";
  const left_out = new Set(LITTLE.split(" "));

  // the words without numbers: "CUBLAS_STATUS" is two, "can't" and "cannot" are the same
  const words = (text) => {
    const plain = text.replace(/[’‘]/g, "'").replaceAll("_", " ").toLowerCase().replace(/n't\b|nnot\b/g, " not");
    return (plain.match(/(?<!\w)[a-z]\w*/g) ?? []).filter((word) => !left_out.has(word));
  };

  // words, and what stands side by side: "mat1 is on cpu" is not "mat1 is on cuda:0"
  const parts = (text) => {
    const all = words(text);
    return new Map([1, 2, 4].flatMap((n) => all.slice(n - 1).map((_, i) => [all.slice(i, i + n).join(" "), 1 / n])));
  };

  // a traceback is several texts; the message begins after the name of the error, at the end or in the middle
  const texts = (query) =>
    [query, query.replace(/([a-z]{2})([A-Z])/g, "$1 $2")] // a search field drops line breaks
      .flatMap((text) => [text, ...text.split(/[\w.]*(?:Error|Exception|Interrupt)\b:?/)]);

  const fitting = (query) => {
    // each with its heading, the message, and the other words that the page has for it
    const all = MESSAGES.map(([page, id, ...all]) => ({page, id, title: all[0], texts: all.map(parts)}));
    const times = new Map(); // in how many sections a part is: what many have says little
    for (const {texts} of all)
      for (const part of new Set(texts.flatMap((text) => [...text.keys()]))) times.set(part, (times.get(part) ?? 0) + 1);
    const weight = (some) => [...some].reduce((sum, [part, share]) => sum + share / (times.get(part) ?? 1), 0);
    const fit = (text, asked, most) => {
      const both = [...text].filter(([part]) => asked.has(part));
      if (both.length < Math.min(4, text.size)) return 0;
      const [common, whole] = [weight(both), weight(text)];
      return common / Math.min(whole, most) + both.length / 1000 * common / whole; // of equals, the longer one
    };
    const asked = texts(query).map(parts).map((some) => [some, weight(some)]);
    return all
      .map((section) => ({...section, score: Math.max(...section.texts.flatMap((text) => asked.map((some) => fit(text, ...some))))}))
      .filter((section) => section.score >= ENOUGH)
      .sort((a, b) => b.score - a.score)
      .slice(0, SHOWN);
  };

  const rankFirst = () => {
    const search = Search._performSearch;
    Search._performSearch = (query, ...rest) => {
      const index = Search._index;
      const found = fitting(query).map(({title, page, id, score}) => {
        const file = index.docnames.indexOf(page);
        return [page, `${index.titles[file]} > ${title}`, `#${id}`, null, 1000 + score, index.filenames[file], "title"];
      });
      const places = new Set(found.map(([page, , id]) => page + id));
      const others = search(query, ...rest).filter(([page, , id]) => !places.has(page + id));
      return [...others, ...found.reverse()]; // the last one is shown first
    };
  };

  // On the page of messages itself: a field above their list. What it searches comes when it is needed, from a disk, too.
  const addField = (list) => {
    const make = (name, properties, ...inside) => {
      const made = Object.assign(document.createElement(name), properties);
      made.append(...inside);
      return made;
    };
    const root = document.documentElement.dataset.content_root;
    const field = make("textarea", {rows: 3, spellcheck: false});
    const found = make("ul", {ariaLive: "polite"});
    list.before(make("label", {className: "search-field"}, "Paste your message, all of it:", field), found);

    const show = () => {
      const asked = field.value.trim();
      if (!asked || typeof MESSAGES === "undefined") return found.replaceChildren();
      const links = fitting(asked).map(({title, page, id}) => make("a", {href: `${root}${page}.html#${id}`}, title));
      found.replaceChildren(...(links.length ? links : [NOTHING]).map((line) => make("li", {}, line)));
    };
    const load = () => document.head.append(make("script", {src: `${root}_static/messages.js`, onload: show}));
    field.addEventListener("focus", load, {once: true});
    field.addEventListener("input", show);
    field.addEventListener("keydown", (event) => {
      const first = found.querySelector("a");
      if (event.key !== "Enter" || !first) return;
      event.preventDefault();
      first.click();
    });
  };

  const list = document.querySelector(".messages");
  if (list) addField(list);
  else if (Search._performSearch) rankFirst(); // a private name of Sphinx: a test tells when it goes
}
