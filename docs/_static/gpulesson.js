// What scrolls sideways can be scrolled with the keyboard, and what is folded is printed.
"use strict";

function reach() {
  for (const area of document.querySelectorAll("pre, .table-wrapper, .math-wrapper, .output_html")) {
    if (area.scrollWidth > area.clientWidth || area.scrollHeight > area.clientHeight) area.tabIndex = 0;
    else area.removeAttribute("tabindex");
  }
}

new ResizeObserver(reach).observe(document.body);
addEventListener("toggle", reach, true);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => (fold.open = true)));
