// The page of the search: what fits a pasted message, then the sections whose words are asked for. All is read from
// scripts that lie beside it, so that it works from a disk, too.
"use strict";

const Sections = {
  LIKE: 0.5, // what a word of the same meaning counts, or one that only begins like it
  FILLER: 0.1, // and one of which every question is made
  TITLE: 4, // what a title counts that is the question, beside the words in it
  SHOWN: 20,

  // as in docs/_ext/search.py, which made the index
  words(text) {
    const found = text.replace(/n['’]t\b/g, " not").match(/[\p{L}\p{N}]+(?:_+[\p{L}\p{N}]+)*/gu) ?? [];
    return found.flatMap((word) => {
      const pieces = word.match(/[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+/g) ?? [];
      return [word, ...(pieces.length > 1 ? pieces : [])].map((one) => one.toLowerCase());
    });
  },

  // section -> weight, of one word of the index
  weights(word) {
    const found = new Map();
    let number = 0;
    for (const [, step, letter] of (SECTIONS.words[word] ?? "").matchAll(/([0-9a-z]+)([A-Z])/g))
      found.set(number += parseInt(step, 36), (letter.charCodeAt() - 64) ** 2);
    return found;
  },

  // what a word of the question finds, by itself, by words of its meaning, and, where there is none, by its beginning
  found(word) {
    let others = SECTIONS.alike.filter((group) => group.includes(word)).flat();
    if (!Object.hasOwn(SECTIONS.words, word) && word.length > 2)
      others = others.concat(Object.keys(SECTIONS.words).filter((one) => one.startsWith(word)));
    const all = this.weights(word);
    for (const other of others)
      for (const [section, weight] of this.weights(other))
        all.set(section, Math.max(all.get(section) ?? 0, weight * this.LIKE));
    return all;
  },

  // the words of a question that say something, each with the first one of its meaning
  asked(question) {
    const stemmer = new Stemmer();
    const said = this.words(question).filter((word) => !SECTIONS.ignored.includes(word));
    return new Map(said.map((word) => stemmer.stemWord(word)).map((word) =>
      [word, SECTIONS.alike.find((group) => group.includes(word))?.[0] ?? word]));
  },

  // the sections that fit a question, best first. What has all of its words comes before what has one of them often, and a
  // title that is made of them before a text; a word that nearly all sections have may be missing. What people call a
  // section is as good as its title.
  fitting(question) {
    const scores = new Map(), tells = new Map();
    for (const [word, meaning] of this.asked(question)) {
      const found = this.found(word), share = SECTIONS.fillers.includes(word) ? this.FILLER : 1;
      const told = share * Math.log(1 + SECTIONS.sections.length / (1 + found.size));
      tells.set(meaning, told);
      for (const [section, weight] of found) {
        const [sum, part] = scores.get(section) ?? [0, 0];
        scores.set(section, [sum + weight * share, part + told]);
      }
    }
    const whole = [...tells.values()].reduce((sum, told) => sum + told, 0);
    return [...scores]
      .map(([section, [sum, part]]) => {
        const [, , , , ...names] = SECTIONS.sections[section]; // as `asked` makes them of a question
        const alike = names.map((name) => {
          const words = name.split(" "), both = words.filter((word) => tells.has(word));
          return both.length / words.length * both.reduce((sum, word) => sum + tells.get(word), 0) / whole;
        });
        return [section, sum * part / whole * (1 + this.TITLE * Math.max(...alike))];
      })
      .sort((a, b) => b[1] - a[1])
      .slice(0, this.SHOWN)
      .map(([section]) => {
        const [page, id, title, excerpt] = SECTIONS.sections[section];
        return {page: SECTIONS.pages[page][0], above: id && SECTIONS.pages[page][1], id, title, excerpt};
      });
  },
};

{
  const question = new URLSearchParams(location.search).get("q")?.trim();
  const place = document.querySelector("#search-results");
  if (question && place) {
    const make = (name, text, ...inside) => {
      const made = document.createElement(name);
      made.append(text, ...inside);
      return made;
    };
    for (const field of document.querySelectorAll("input[name=q]")) field.value = question;
    const messages = Messages.fitting(question);
    const known = new Set(messages.map(({page, id}) => page + id));
    const results = [...messages, ...Sections.fitting(question).filter(({page, id}) => !known.has(page + id))];
    const list = document.createElement("ul");
    list.className = "search";
    for (const {page, id, title, above, excerpt} of results) {
      const link = make("a", title);
      link.href = `${page}.html${id && `#${id}`}`;
      const item = make("li", link);
      if (above ?? excerpt) item.append(make("p", [above, excerpt].filter(Boolean).join(": ")));
      list.append(item);
    }
    const found = make("p", results.length ? `Found: ${results.length}.` : "Nothing was found.");
    found.className = "search-summary";
    place.append(make("h2", "Results"), found, list);
  }
}
