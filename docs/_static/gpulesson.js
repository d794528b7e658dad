// What scrolls sideways can be scrolled with the keyboard, what is folded is printed, the drawers have buttons, and
// code can be copied.
"use strict";

const areas = [...document.querySelectorAll("pre, .table-wrapper, .math-wrapper, .output_html, .live, .recorded")];

// All are measured before one is changed, or the browser would lay out the page anew for each. What it does not render
// yet is measured when it does.
function reach() {
  const shown = areas.filter((area) => area.checkVisibility({contentVisibilityAuto: true}));
  const scrolls = shown.map((area) => area.scrollWidth > area.clientWidth || area.scrollHeight > area.clientHeight);
  shown.forEach((area, i) => {
    if (area.hasAttribute("tabindex") === scrolls[i]) return;
    if (scrolls[i]) area.tabIndex = 0;
    else area.removeAttribute("tabindex");
  });
}

new ResizeObserver(reach).observe(document.body);
addEventListener("toggle", reach, true);
addEventListener("contentvisibilityautostatechange", reach, true);
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const fold of closed) fold.open = true;
});
addEventListener("afterprint", () => closed.forEach((fold) => (fold.open = false)));

function button(name, text, onclick) {
  return Object.assign(document.createElement("button"), {type: "button", className: name, textContent: text, onclick});
}

// The theme opens its two drawers by check boxes, whose labels no keyboard reaches: here they become buttons. While a
// drawer is open, nothing else can be reached.
const parts = document.querySelectorAll(".skip-to-content, .mobile-header, .content, .sidebar-drawer, .toc-drawer");
for (const [box, selector] of [["__navigation", ".sidebar-drawer"], ["__toc", ".toc-drawer"]]) {
  const state = document.getElementById(box), drawer = document.querySelector(selector);
  const toggle = () => state.click();
  const close = button("close", "Close", toggle);
  let opener;
  const openers = [...document.querySelectorAll(`label[for=${box}]:not(.overlay)`)].map((label) => {
    const made = button(label.className, "", () => {
      opener = made;
      toggle();
    });
    made.append(...label.childNodes);
    made.ariaLabel = drawer.ariaLabel;
    made.ariaExpanded = false;
    made.setAttribute("aria-controls", drawer.id = selector.slice(1));
    label.replaceWith(made);
    return made;
  });
  drawer.prepend(close);
  state.checked = false; // some browsers remember it
  state.onchange = () => {
    for (const part of parts) part.inert = state.checked && part !== drawer;
    for (const one of openers) one.ariaExpanded = state.checked;
    (state.checked ? close : opener)?.focus();
  };
  const shut = (event) => {
    if (state.checked && (event.type !== "keydown" || event.key === "Escape")) toggle();
  };
  addEventListener("keydown", shut);
  matchMedia("(min-width: 63em)").addEventListener("change", shut);
  matchMedia("(min-width: 79em)").addEventListener("change", shut);
  drawer.addEventListener("click", (event) => event.target.closest("a") && shut(event));
}

if (navigator.clipboard) { // only over https, on this machine and from a folder
  const said = document.createElement("output");
  said.className = "said";
  document.body.append(said);
  document.documentElement.classList.add("copies");
  const copy = async ({currentTarget: pressed}) => {
    try {
      await navigator.clipboard.writeText(pressed.parentElement.querySelector("pre").textContent.trimEnd());
      pressed.textContent = said.value = "Copied";
    } catch {
      pressed.textContent = said.value = "Not copied";
    }
    setTimeout(() => { pressed.textContent = "Copy"; said.value = ""; }, 2000);
  };
  const near = new IntersectionObserver((blocks) => { // a long page has hundreds
    for (const {isIntersecting, target} of blocks) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      const made = button("copy", "Copy", copy);
      made.ariaLabel = "Copy this code";
      target.append(made);
    }
  }, {rootMargin: "100%"});
  for (const block of document.querySelectorAll("article [class*=highlight-]:not(.sphx-glr-script-out, .doctest) > .highlight"))
    near.observe(block);
}
