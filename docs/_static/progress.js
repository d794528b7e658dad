// Remembers in this browser, and nowhere else, which lessons were read and where the reader stopped. Where a browser
// forbids storage, or has no room, nothing of it is shown.
"use strict";

const Progress = {
  key: "gpulesson",
  lesson: (address) => address.match(/\/lessons\/(\d\d_\w+)\.html/)?.[1],
  load() {
    const state = {read: {}, passed: {}, last: []};
    try {
      const kept = JSON.parse(localStorage.getItem(this.key));
      for (const part in state) if (kept[part]?.constructor === state[part].constructor) state[part] = kept[part];
    } catch { /* nothing yet, or nothing that we wrote */ }
    return state;
  },
  change(edit) { // what is stored now: another tab may have changed it
    const state = this.load();
    edit(state);
    try { localStorage.setItem(this.key, JSON.stringify(state)); } catch { return false; }
    this.mark(state);
    return true;
  },
  mark(state) {
    for (const link of document.querySelectorAll(".sidebar-tree a, .sphx-glr-thumbcontainer a"))
      for (const part of ["read", "passed"]) link.classList.toggle(part, state[part][this.lesson(link.href)] ?? false);
  },
};

{
  const here = Progress.lesson(location.href);
  if (Progress.change(() => {}) && here) {
    const stop = () => {
      const above = [...document.querySelectorAll("article section")].filter((part) => part.getBoundingClientRect().top < innerHeight / 2);
      Progress.change((state) => { state.last = [here, above.at(-1)?.id]; });
    };
    addEventListener("pagehide", stop);
    document.addEventListener("visibilitychange", stop);
    new IntersectionObserver((seen) => {
      if (seen.at(-1).isIntersecting) Progress.change((state) => { state.read[here] = 1; });
    }).observe(document.querySelector(".keypoints"));
    const tick = document.createElement("input");
    tick.type = "checkbox";
    tick.checked = Progress.load().passed[here];
    tick.onchange = () => Progress.change((state) => { state.passed[here] = tick.checked; });
    const label = document.createElement("label");
    label.append(tick, " I have passed this exercise");
    document.querySelector(".box.exercise").append(label);
  }
}
