// Steps through the stops of a film.
"use strict";
play.begin("film", (film, variants) => {
  const { make } = play;
  let { texts, stops } = variants[0];
  const back = play.button("Back", () => go(-1)), next = play.button("Next", () => go(1));
  const slider = play.slider("Stop", 1, stops.length, 1, () => show(Number(slider.value)));
  const place = make("span", "film-place", "");
  const says = play.says("film-says");
  const code = make("div", "film-code", "");
  code.tabIndex = 0;
  const side = (kind, title) => {
    const list = make("ul", "", "");
    const box = make("div", `film-${kind}`, "", make("p", "film-side", title), list);
    return { box, list };
  };
  const host = side("host", "Host memory"), gpu = side("gpu", "GPU memory");
  const used = make("p", "film-used", ""), stack = make("div", "film-stack", "");
  gpu.list.before(used, stack);
  const most = variants.flatMap((each) => each.stops).reduce((a, b) => (b.used[0] > a.used[0] ? b : a)).used;
  const bus = make("div", "film-bus", "");
  const count = make("span", "", ""), kernels = make("span", "film-kernels", "");
  kernels.ariaHidden = "true";
  const queue = make("p", "film-queue", "", count, kernels);
  const world = make("div", "film-world", "", host.box, bus, gpu.box, queue);
  const bar = make("div", "play-row", "", back, next, slider, place);

  let shown = "", lines = [];
  const show = (number) => {
    const stop = stops[number - 1];
    if (stop.file !== shown) {
      shown = stop.file;
      const usual = (variants[0].texts[shown] ?? "").split("\n");
      lines = texts[shown].split("\n").map((text, at) =>
        make("div", text === usual[at] ? "" : "other", "",
          make("span", "film-number", `${at + 1}`), make("code", "", text || " ")));
      code.replaceChildren(...lines);
    }
    lines.forEach((line, at) => line.classList.toggle("now", stop.line <= at + 1 && at + 1 <= stop.last));
    const now = lines[stop.line - 1];
    const top = now.offsetTop - code.offsetTop - code.clientHeight / 3;
    code.scrollTo({ top, behavior: play.calm ? "auto" : "smooth" });
    says.textContent = `${stop.where}. ${stop.says}`;
    says.dataset.kind = stop.kind;
    for (const [list, things] of [[host.list, stop.host], [gpu.list, stop.gpu]]) {
      list.replaceChildren(...things.map(([name, text, isNew]) =>
        make("li", isNew ? "new" : "", "", make("b", "", name), ` ${text}`)));
    }
    used.textContent = `${stop.used[1]} of at most ${most[1]}`;
    stack.replaceChildren(...stop.gpu.filter((thing) => thing[3]).map(([name, , , nbytes]) => {
      const piece = make("i", name ? "" : "unnamed", "");
      piece.style.width = `${(100 * nbytes) / most[0]}%`;
      return piece;
    }));
    bus.replaceChildren(
      ...(stop.to ? [make("span", "", `${stop.to} →`)] : []),
      ...(stop.back ? [make("span", "", `← ${stop.back}`)] : []));
    const meanwhile = stop.queue ? ", and the GPU computes meanwhile" : "";
    count.textContent = `Sent to the GPU, not waited for: ${stop.queue}${meanwhile}`;
    kernels.textContent = "▮".repeat(Math.min(stop.queue, 60));
    place.textContent = `${number} of ${stops.length}`;
    slider.value = number;
  };
  const go = (by) => show(Math.max(1, Math.min(stops.length, Number(slider.value) + by)));
  film.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const other = event.altKey || event.ctrlKey || event.metaKey;
    if (by && !other && event.target !== code && event.target.localName !== "input") {
      go(by);
      event.preventDefault();
    }
  });
  if (variants.length > 1) {
    const group = `film-${[...document.querySelectorAll(".film")].indexOf(film)}`;
    film.append(make("fieldset", "play-row", "", make("legend", "", "Which script?"),
      ...variants.map((each, at) => {
        const radio = play.input("radio", { name: group, checked: !at });
        radio.onchange = () => {
          ({ texts, stops } = each);
          shown = "";
          slider.max = stops.length;
          go(0);
        };
        return make("label", "", "", radio, ` ${each.name}`);
      })));
  }
  film.append(bar, says, make("div", "film-stage", "", code, world));
  show(1);
});
