// What the parts to play with share. A part is an element with `data-play`, its name. In it are data, as JSON, and
// `.still`: what the page shows without scripts, and on paper.
"use strict";
const play = {
  calm: matchMedia("(prefers-reduced-motion: reduce)").matches,

  // Begin all parts of a name, each when it is less than a window away: until then it costs no time.
  // `begin(part, data, address)` adds to a part what can be played with; the address is its script's.
  begin(name, begin) {
    const { src } = document.currentScript; // only while the script runs
    const near = new IntersectionObserver((parts) => {
      for (const { target: part, isIntersecting } of parts) {
        if (!isIntersecting) continue;
        near.unobserve(part);
        begin(part, JSON.parse(part.querySelector("script").textContent), src);
      }
    }, { rootMargin: "100%" });
    for (const part of document.querySelectorAll(`[data-play="${name}"]`)) near.observe(part);
  },

  make(name, className, text, ...inside) {
    const node = document.createElement(name);
    node.className = className;
    node.textContent = text;
    node.append(...inside);
    return node;
  },

  button(text, onclick) {
    return Object.assign(play.make("button", "", text), { type: "button", onclick });
  },

  // What a screen reader reads out when it changes.
  says(className, text = "") {
    const node = play.make("p", className, text);
    node.setAttribute("aria-live", "polite");
    return node;
  },

  input(type, properties) {
    return Object.assign(play.make("input", "", ""), { type, ...properties });
  },

  // A slider without a visible label; `label` is for screen readers.
  slider(label, min, max, value, oninput) {
    return play.input("range", { ariaLabel: label, min, max, value, oninput });
  },

  // A choice of one among several: `choose(number)` is called for each new one.
  choice(label, names, choose) {
    const list = play.make("select", "", "", ...names.map((name, at) => new Option(name, at)));
    list.onchange = () => choose(Number(list.value));
    return play.make("label", "", `${label} `, list);
  },

  // A bar that is as long as its share, from 0 to 1, with words at both ends: [node, set(share, words)].
  bar(name) {
    const words = play.make("span", "", ""), inside = play.make("i", "", "");
    const set = (share, text) => {
      inside.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
      words.textContent = text;
    };
    return [play.make("div", "play-bar", "", play.make("b", "", name), play.make("span", "", "", inside), words), set];
  },
};
