// A pasted error message leads to its section on a page of messages, whatever its numbers are and whatever stands around
// it. Sphinx's own search wants every word of the query on one page; its results follow after ours, as they were.
"use strict";

{
  const LABEL = "error-"; // how the addresses of their sections begin; the heading of each is the message
  const ENOUGH = 0.5; // of the shorter one, message or query, must be in the other
  const SHOWN = 3;

  // the words without numbers, and what stands side by side: "mat1 is on cpu" is not "mat1 is on cuda:0"
  const parts = (text) => {
    const apart = text.replace(/[’‘]/g, "'").replace(/([a-z])([A-Z])/g, "$1 $2"); // a search field drops line breaks
    const words = apart.toLowerCase().match(/(?<![\w'])[a-z_]\w*(?:'[a-z]+)?/g) ?? [];
    return new Map([1, 2, 4].flatMap((n) => words.slice(n - 1).map((_, i) => [words.slice(i, i + n).join(" "), 1 / n])));
  };

  // a traceback is several texts; the message begins after the name of the error, at the end or in the middle
  const texts = (query) => [query, ...query.split(/[\w.]*(?:Error|Exception|Interrupt)\b:?/)];

  const sections = (index) =>
    Object.entries(index.alltitles).flatMap(([title, places]) =>
      places.filter(([, id]) => id?.startsWith(LABEL)).map(([file, id]) => ({title, id, file, parts: parts(title)})));

  const fitting = (query, index) => {
    const all = sections(index);
    const times = new Map(); // in how many messages a part is: what many have says little
    for (const section of all) for (const part of section.parts.keys()) times.set(part, (times.get(part) ?? 0) + 1);
    const weight = (some) => some.reduce((sum, [part, share]) => sum + share / (times.get(part) ?? 1), 0);
    const fit = (section, asked) => {
      const both = [...section.parts].filter(([part]) => asked.has(part));
      if (both.length < 3) return 0;
      return weight(both) / Math.min(weight([...section.parts]), weight([...asked])) + both.length / 1000;
    };
    const asked = texts(query).map(parts);
    return all
      .map((section) => ({...section, score: Math.max(...asked.map((text) => fit(section, text)))}))
      .filter((section) => section.score >= ENOUGH)
      .sort((a, b) => b.score - a.score)
      .slice(0, SHOWN);
  };

  const search = Search._performSearch; // a private name of Sphinx: a test tells when it goes
  if (search) Search._performSearch = (query, ...rest) => {
    const index = Search._index;
    const found = fitting(query, index).map(({title, id, file, score}) =>
      [index.docnames[file], `${index.titles[file]} > ${title}`, `#${id}`, null, 1000 + score, index.filenames[file], "title"]);
    const places = new Set(found.map(([page, , id]) => page + id));
    const others = search(query, ...rest).filter(([page, , id]) => !places.has(page + id));
    return [...others, ...found.reverse()]; // the last one is shown first
  };
}
