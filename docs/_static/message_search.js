// A pasted error message leads to its section on a page of messages, whatever its numbers are and whatever stands around
// it: on the page of the search, and in the field on the pages of messages.
"use strict";

const Messages = (() => {
  const ENOUGH = 0.5; // of the shorter one, message or query, must be in the other
  const SHOWN = 3;
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

  return {fitting};
})();

// The field on a page of messages. What it searches comes when it is needed, from a disk, too.
for (const field of document.querySelectorAll(".search-field textarea")) {
  const NOTHING = "No section fits. Try the last line alone, without numbers, paths and names, or look through the list of messages.";
  const found = Object.assign(document.createElement("ul"), {ariaLive: "polite"});
  field.parentElement.after(found); // within what is hidden where there are no scripts
  const make = (name, properties) => Object.assign(document.createElement(name), properties);
  const show = () => {
    const asked = field.value.trim();
    if (!asked || typeof MESSAGES === "undefined") return found.replaceChildren();
    const root = document.documentElement.dataset.content_root;
    const links = Messages.fitting(asked).map(({title, page, id}) => make("a", {href: `${root}${page}.html#${id}`, textContent: title}));
    found.replaceChildren(...(links.length ? links : [NOTHING]).map((line) => {
      const item = make("li", {});
      item.append(line);
      return item;
    }));
  };
  const load = () => document.head.append(make("script", {src: `${document.documentElement.dataset.content_root}_static/messages.js`, onload: show}));
  field.addEventListener("focus", load, {once: true});
  field.addEventListener("input", show);
  field.addEventListener("keydown", (event) => {
    const first = found.querySelector("a");
    if (event.key !== "Enter" || !first) return;
    event.preventDefault();
    first.click();
  });
}
